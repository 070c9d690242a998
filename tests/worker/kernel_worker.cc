#include "tests/worker/kernel_worker.h"

#include "cli/verify_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace sluice::test {

Status WatchingHook::prepare(LayerAddresses all, Device* /*device*/) {
    addresses_.assign(all.begin(), all.end());
    return on_prepare;
}

Status WatchingHook::run(const LandedLayer& layer) {
    {
        const std::lock_guard lock(mutex_);
        calls_.emplace_back(layer.version, layer.group);
    }
    return on_run(layer);
}

std::vector<GroupId> WatchingHook::calls(std::uint64_t version) const {
    const std::lock_guard lock(mutex_);
    std::vector<GroupId> groups;
    for (const auto& [of_version, group] : calls_) {
        if (of_version == version) {
            groups.push_back(group);
        }
    }
    return groups;
}

KernelWorker::KernelWorker(BedRank& rank)
    : rank_(rank), values_model_{"test", rank.model().config, rank.model().catalogue, nullptr, {}} {
    rank_.buffered = [this](BedRank& r) {
        auto storage = cli::KernelStorage::allocate(r.demand(), rank_.model().config, r.device());
        EXPECT_TRUE(storage.ok()) << storage.status().message();
        storage_.emplace(std::move(*storage));
        r.hooks.layers = {&watching};
        for (LayerHook* hook : storage_->hooks()) {
            r.hooks.layers.push_back(hook);
        }
        return storage_->format().quantised;
    };
}

void KernelWorker::poison() {
    const Status status = storage_->poison();
    EXPECT_TRUE(status.ok()) << status.message();
}

std::string KernelWorker::wrong(std::uint64_t version) const {
    const auto host = storage_->on_host();
    if (!host.ok()) {
        return host.status().message();
    }
    const auto result = cli::verify_kernel_format(rank_.model().catalogue, rank_.demand(), *storage_, *host,
                                                  cli::WeightValues(values_model_), version);
    return result.status.ok() ? std::string() : result.status.message();
}

GroupId KernelWorker::group_of(ParameterId parameter) const {
    const auto& records = rank_.demand().records;
    const auto at =
        std::find_if(records.begin(), records.end(), [&](const CopyRecord& r) { return r.parameter == parameter; });
    return rank_.model().catalogue[at->tensor].group;
}

std::vector<GroupId> KernelWorker::layers() const {
    std::set<GroupId> groups;
    for (const ParameterId id : storage_->format().quantised) {
        groups.insert(group_of(id));
    }
    return {groups.begin(), groups.end()};
}

std::int64_t KernelWorker::largest_layer() const {
    std::map<GroupId, std::int64_t> bytes;
    for (const ParameterId id : storage_->format().quantised) {
        bytes[group_of(id)] += rank_.demand().parameters[static_cast<std::size_t>(id)].bytes();
    }
    return std::max_element(bytes.begin(), bytes.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->second;
}

bool KernelWorker::right_in_buffer(const LandedLayer& layer) const {
    const auto expected = rank_.model().parameters(rank_.demand(), layer.version);
    return std::all_of(layer.parameters.begin(), layer.parameters.end(), [&](ParameterId id) {
        const auto& want = expected[static_cast<std::size_t>(id)];
        return std::equal(want.begin(), want.end(), watching.address(id));
    });
}

}  // namespace sluice::test
