#pragma once

#include "runtime/exchange/rank_plan.h"
#include "runtime/exchange/session.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The encoding of what ranks exchange over the bootstrap (setup.proto). Decoding checks everything; a malformed message is an
/// internal error that says what is wrong. A Status inside is the sender's own failure.
namespace sluice {

struct Card {
    std::vector<std::byte> address;
    MemoryCard memory;
};
std::vector<std::byte> encode_card(std::span<const std::byte> address, const Result<MemoryCard>& memory);
Result<Card> decode_card(std::span<const std::byte> bytes);

/// A status alone; malformed bytes give an internal error.
std::vector<std::byte> encode_status(const Status& status);
Status decode_status(std::span<const std::byte> bytes);

std::vector<std::byte> encode_input(const RankInput& input, std::uint64_t catalogue_digest, std::int64_t chunk_bytes);
struct DecodedInput {
    RankInput input;
    std::uint64_t catalogue_digest = 0;
    std::int64_t chunk_bytes = 0;
};
Result<DecodedInput> decode_input(std::span<const std::byte> bytes, const Catalogue& catalogue);

std::vector<std::byte> encode_rank_plan(const Result<RankPlan>& plan);
/// `input` is what the receiving rank has put in: its part of the plan must fit it.
Result<RankPlan> decode_rank_plan(std::span<const std::byte> bytes, const RankInput& input, const Catalogue& catalogue,
                                  std::int64_t chunk_bytes);

}  // namespace sluice
