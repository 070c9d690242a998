#include "planner/loaders/block_scales.h"

#include <fmt/format.h>

namespace sluice::rules {

std::int64_t scale_block(const LoadContext& load) {
    const nlohmann::json* block = load.config().find("quantization_config.weight_block_size");
    if (block == nullptr || !block->is_array() || block->size() != 2 || !(*block)[0].is_number_integer() ||
        (*block)[0] != (*block)[1] || (*block)[0].get<std::int64_t>() < 1) {
        throw RecordingRefused(invalid_argument(
            "config: a checkpoint with weight_scale_inv needs quantization_config.weight_block_size [n, n]"));
    }
    return (*block)[0].get<std::int64_t>();
}

Split scale_split(const Split& split, std::int64_t size, std::int64_t block, const std::string& parameter) {
    if (split.count > 1 && size / split.count % block != 0) {
        refuse(
            fmt::format("parameter {}: a piece of {} cuts through a scale block of {}; choose a smaller parallel size",
                        parameter, size / split.count, block));
    }
    return split;
}

void check_merged_part(std::int64_t rows, std::int64_t block, const std::string& parameter) {
    if (rows % block != 0) {
        refuse(
            fmt::format("parameter {}: a part of {} rows ends inside a scale block of {} that it would share with the "
                        "next part; merged parts need multiples of {}",
                        parameter, rows, block, block));
    }
}

}  // namespace sluice::rules
