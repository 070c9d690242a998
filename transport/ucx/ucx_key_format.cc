#include "transport/ucx/ucx_key_format.h"

#include "transport/sealed.h"

namespace sluice::transport {
namespace {

constexpr std::string_view kKeyKind = "SLK1";
constexpr std::string_view kAddressKind = "SLA1";

void append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

std::vector<std::byte> encode_key(const UcxKeyFields& fields) {
    std::vector<std::byte> content;
    append_u64(content, fields.id);
    append_u64(content, fields.address);
    append_u64(content, fields.size);
    append_u64(content, static_cast<std::uint64_t>(fields.kind));
    append(content, fields.ucx);
    return seal(kKeyKind, content);
}

Result<UcxKeyFields> decode_key(std::span<const std::byte> packed) {
    SLUICE_ASSIGN_OR_RETURN(std::span<const std::byte> content, unseal(kKeyKind, "memory key", packed));
    UcxKeyFields fields;
    std::uint64_t kind = 0;
    if (!take_u64(content, fields.id) || !take_u64(content, fields.address) || !take_u64(content, fields.size) ||
        !take_u64(content, kind) || kind > static_cast<std::uint64_t>(MemoryKind::kCuda) ||
        fields.address + fields.size < fields.address || (fields.size == 0) != content.empty()) {
        return invalid_argument("the peer's memory key has fields out of range; do both sides run the same Sluice?");
    }
    fields.kind = static_cast<MemoryKind>(kind);
    fields.ucx = content;
    return fields;
}

std::vector<std::byte> encode_address(const UcxAddressFields& fields) {
    std::vector<std::byte> content;
    append_u64(content, fields.probe_key.size());
    append(content, fields.probe_key);
    append(content, fields.ucx);
    return seal(kAddressKind, content);
}

Result<UcxAddressFields> decode_address(std::span<const std::byte> packed) {
    SLUICE_ASSIGN_OR_RETURN(std::span<const std::byte> content, unseal(kAddressKind, "address", packed));
    std::uint64_t key_size = 0;
    if (!take_u64(content, key_size) || key_size >= content.size()) {
        return invalid_argument("the peer's address has fields out of range; do both sides run the same Sluice?");
    }
    UcxAddressFields fields;
    fields.probe_key = content.first(key_size);
    fields.ucx = content.subspan(key_size);
    return fields;
}

}  // namespace sluice::transport
