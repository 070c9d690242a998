#include "cli/verify_kernel.h"

#include "cli/source_bytes.h"
#include "runtime/base/strided_copy.h"
#include "runtime/services/block_quantise.h"
#include "runtime/services/copy_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace sluice::cli {
namespace {

class Comparison {
public:
    Comparison(const Catalogue& catalogue, const Demand& demand, const KernelStorage& storage,
               std::span<const std::byte> host, const WeightValues& values, std::uint64_t version)
        : demand_(demand), storage_(storage), host_(host), source_(catalogue, values, version), version_(version) {
        records_.resize(demand.parameters.size());
        for (const CopyRecord& record : demand.records) {
            records_[static_cast<std::size_t>(record.parameter)].push_back(&record);
        }
    }

    FullVerification run() {
        const KernelFormat& format = storage_.format();
        for (std::size_t i = 0; i < format.quantised.size(); ++i) {
            const Parameter& parameter = demand_.parameters[static_cast<std::size_t>(format.quantised[i])];
            load(format.quantised[i]);
            quantise(parameter, storage_.values_of(i), storage_.scales_of(i));
            const auto split = std::find_if(format.splits.begin(), format.splits.end(),
                                            [&](const auto& s) { return s.kv_b == format.quantised[i]; });
            if (split != format.splits.end()) {
                const auto number = static_cast<std::size_t>(split - format.splits.begin());
                compare_split(*split, size_of(parameter.dtype), storage_.keys_of(number),
                              storage_.values_of_split(number));
            }
        }
        return result_;
    }

private:
    // The whole parameter in load format, as the loader writes it.
    void load(ParameterId id) {
        const Parameter& parameter = demand_.parameters[static_cast<std::size_t>(id)];
        loaded_.assign(static_cast<std::size_t>(parameter.bytes()), std::byte{0});
        for (const CopyRecord* record : records_[static_cast<std::size_t>(id)]) {
            const StridedCopy copy = coalesce(record->copy, record->converts());
            for_each_item(copy, [&](std::int64_t src, std::int64_t dst) {
                const std::byte* from = source_.read(record->tensor, src, copy.item);
                StridedCopy one;
                one.item = copy.item;
                if (record->converts()) {
                    converting_copy(one, record->source_dtype, record->parameter_dtype, from, loaded_.data() + dst);
                } else {
                    strided_copy(one, from, loaded_.data() + dst);
                }
            });
        }
    }

    void quantise(const Parameter& parameter, const KernelStorage::Tensor& values,
                  const KernelStorage::Tensor& scales) {
        Result<BlockQuantisation> job = quantisation_of(parameter);
        std::vector<std::byte> q(static_cast<std::size_t>(values.bytes()));
        std::vector<float> s(static_cast<std::size_t>(num_elements(scales.shape)));
        job->source = loaded_.data();
        job->values = q.data();
        job->scales = s.data();
        quantise_blocks(*job);
        compare(values, q.data());
        compare(scales, reinterpret_cast<const std::byte*>(s.data()));
    }

    void compare_split(const KernelFormat::LatentSplit& split, std::int64_t item, const KernelStorage::Tensor& keys,
                       const KernelStorage::Tensor& values) {
        std::vector<std::byte> expected_keys(static_cast<std::size_t>(keys.bytes()));
        std::vector<std::byte> expected_values(static_cast<std::size_t>(values.bytes()));
        const auto copy = [&](std::vector<std::byte>& to, std::int64_t index, std::int64_t row, std::int64_t column) {
            std::memcpy(to.data() + index * item, loaded_.data() + (row * split.rank + column) * item,
                        static_cast<std::size_t>(item));
        };
        for (std::int64_t h = 0; h < split.heads; ++h) {
            const std::int64_t first = h * (split.nope + split.value);
            for (std::int64_t r = 0; r < split.rank; ++r) {
                for (std::int64_t i = 0; i < split.nope; ++i) {
                    copy(expected_keys, (h * split.rank + r) * split.nope + i, first + i, r);
                }
                for (std::int64_t j = 0; j < split.value; ++j) {
                    copy(expected_values, (h * split.value + j) * split.rank + r, first + split.nope + j, r);
                }
            }
        }
        compare(keys, expected_keys.data());
        compare(values, expected_values.data());
    }

    void compare(const KernelStorage::Tensor& tensor, const std::byte* expected) {
        const std::byte* found = host_.data() + tensor.offset;
        const auto item = static_cast<std::size_t>(size_of(tensor.dtype));
        if (std::memcmp(found, expected, static_cast<std::size_t>(tensor.bytes())) == 0) {
            return;
        }
        for (std::int64_t i = 0; i < num_elements(tensor.shape); ++i) {
            const std::size_t at = static_cast<std::size_t>(i) * item;
            if (std::memcmp(found + at, expected + at, item) == 0 || result_.mismatches++ > 0) {
                continue;
            }
            result_.status =
                Status(StatusCode::kMismatch,
                       fmt::format("version {}: element {} of {} is not what its hook makes of the version's weights",
                                   version_, i, tensor.name));
        }
    }

    const Demand& demand_;
    const KernelStorage& storage_;
    std::span<const std::byte> host_;
    SourceBytes source_;
    std::uint64_t version_;
    std::vector<std::vector<const CopyRecord*>> records_;  // by ParameterId
    std::vector<std::byte> loaded_;
    FullVerification result_;
};

}  // namespace

FullVerification verify_kernel_format(const Catalogue& catalogue, const Demand& demand, const KernelStorage& storage,
                                      std::span<const std::byte> host, const WeightValues& values,
                                      std::uint64_t version) {
    return Comparison(catalogue, demand, storage, host, values, version).run();
}

}  // namespace sluice::cli
