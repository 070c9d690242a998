#include "transport/sealed.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cassert>

namespace sluice::transport {
namespace {

constexpr std::size_t kKindBytes = 4;
constexpr std::size_t kOverhead = kKindBytes + 16;  // kind, length, checksum

std::uint64_t checksum(std::string_view kind, std::span<const std::byte> content) {
    return XXH3_64bits_withSeed(content.data(), content.size(), XXH3_64bits(kind.data(), kind.size()));
}

}  // namespace

void append_u64(std::vector<std::byte>& out, std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
        out.push_back(static_cast<std::byte>(value >> shift));
    }
}

bool take_u64(std::span<const std::byte>& in, std::uint64_t& value) {
    if (in.size() < 8) {
        return false;
    }
    value = 0;
    for (std::size_t i = 0; i < 8; ++i) {
        value |= std::to_integer<std::uint64_t>(in[i]) << (8 * i);
    }
    in = in.subspan(8);
    return true;
}

std::vector<std::byte> seal(std::string_view kind, std::span<const std::byte> content) {
    assert(kind.size() == kKindBytes);
    std::vector<std::byte> out;
    out.reserve(kOverhead + content.size());
    for (const char c : kind) {
        out.push_back(static_cast<std::byte>(c));
    }
    append_u64(out, content.size());
    append_u64(out, checksum(kind, content));
    out.insert(out.end(), content.begin(), content.end());
    return out;
}

Result<std::span<const std::byte>> unseal(std::string_view kind, std::string_view what,
                                          std::span<const std::byte> sealed) {
    const auto has_kind = [&] {
        return std::equal(kind.begin(), kind.end(), sealed.begin(),
                          [](char c, std::byte b) { return static_cast<std::byte>(c) == b; });
    };
    if (sealed.size() < kOverhead || !has_kind()) {
        return invalid_argument(
            fmt::format("the peer's {} ({} bytes) is none; do both sides run the same Sluice?", what, sealed.size()));
    }
    std::span<const std::byte> rest = sealed.subspan(kKindBytes);
    std::uint64_t length = 0;
    std::uint64_t sum = 0;
    take_u64(rest, length);
    take_u64(rest, sum);
    if (length != rest.size() || sum != checksum(kind, rest)) {
        return invalid_argument(fmt::format("the peer's {} ({} bytes) was truncated or altered on its way; start again",
                                            what, sealed.size()));
    }
    return rest;
}

}  // namespace sluice::transport
