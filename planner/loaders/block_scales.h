#pragma once

#include "planner/loaders/load_context.h"

#include <cstdint>
#include <string>

/// What the rules need for block-quantised checkpoints: one f32 scale per block of a weight, in `weight_scale_inv`.
namespace sluice::rules {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Rows, and columns, of a block: the config's quantization_config.weight_block_size.
std::int64_t scale_block(const LoadContext& load);

/// `split`, for the scales of a weight that is cut by it along `size` elements. Refuses a cut inside a block: it would
/// need another scale than the checkpoint has.
Split scale_split(const Split& split, std::int64_t size, std::int64_t block, const std::string& parameter);

/// Refuses a part of a merged weight that others follow and whose `rows` end inside a block: the block would hold rows of two parts,
/// which have a scale each.
void check_merged_part(std::int64_t rows, std::int64_t block, const std::string& parameter);

}  // namespace sluice::rules
