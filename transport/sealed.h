#pragma once

#include "runtime/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

/// Blobs that travel between processes and are handed to a library on the other side (addresses, keys) are sealed: a
/// kind, a length and a checksum tell an honest blob from truncated, altered or random bytes, with which a library
/// might do anything.
namespace sluice::transport {

/// `kind` is four characters.
std::vector<std::byte> seal(std::string_view kind, std::span<const std::byte> content);

/// The content, within `sealed`, or why it is none. `what` names the blob in the message.
Result<std::span<const std::byte>> unseal(std::string_view kind, std::string_view what,
                                          std::span<const std::byte> sealed);

/// Little-endian numbers within a blob.
void append_u64(std::vector<std::byte>& out, std::uint64_t value);
/// Takes a number off the front of `in`; false when fewer than eight bytes are left.
bool take_u64(std::span<const std::byte>& in, std::uint64_t& value);

}  // namespace sluice::transport
