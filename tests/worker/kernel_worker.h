#pragma once

#include "cli/kernel_storage.h"
#include "cli/model_source.h"
#include "cli/weight_values.h"
#include "tests/exchange/sync_bed.h"
#include "worker/layer_hook.h"

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace sluice::test {

/// A layer hook that notes its calls and does what a test wants. It sees a layer before the hooks that write kernel format.
class WatchingHook final : public LayerHook {
public:
    Status prepare(LayerAddresses all, Device* device) override;
    Status run(const LandedLayer& layer) override;

    /// What run() does besides; may be changed between two syncs.
    std::function<Status(const LandedLayer& layer)> on_run = [](const LandedLayer&) { return ok_status(); };
    Status on_prepare;
    /// The groups of the calls of one version, in order.
    [[nodiscard]] std::vector<GroupId> calls(std::uint64_t version) const;
    [[nodiscard]] std::byte* address(ParameterId parameter) const {
        return addresses_[static_cast<std::size_t>(parameter)];
    }

private:
    std::vector<std::byte*> addresses_;
    mutable std::mutex mutex_;
    std::vector<std::pair<std::uint64_t, GroupId>> calls_;
};

/// Makes a worker of a bed keep its weights in kernel format (fp8 by blocks), and says what of that is wrong. Made before the rank's create().
class KernelWorker {
public:
    explicit KernelWorker(BedRank& rank);
    KernelWorker(const KernelWorker&) = delete;
    KernelWorker& operator=(const KernelWorker&) = delete;

    WatchingHook watching;

    void poison();
    /// Everything is exactly what the formula gives of that version; else what is not.
    [[nodiscard]] std::string wrong(std::uint64_t version) const;
    /// Groups that have something in a layer buffer, and the bytes of the largest of them in load format.
    [[nodiscard]] std::vector<GroupId> layers() const;
    [[nodiscard]] std::int64_t largest_layer() const;
    [[nodiscard]] cli::KernelStorage& storage() { return *storage_; }
    [[nodiscard]] BedRank& rank() { return rank_; }
    /// Whether all buffered parameters of a layer lie in its buffer as the loader would have written them. In host memory.
    [[nodiscard]] bool right_in_buffer(const LandedLayer& layer) const;

private:
    [[nodiscard]] GroupId group_of(ParameterId parameter) const;

    BedRank& rank_;
    cli::Model values_model_;
    std::optional<cli::KernelStorage> storage_;
};

}  // namespace sluice::test
