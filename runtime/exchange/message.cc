#include "runtime/exchange/message.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <type_traits>

namespace sluice {
namespace {

constexpr std::uint32_t kMagic = 0x4543'4C53;  // "SLCE"
constexpr std::uint8_t kFormat = 1;
constexpr std::size_t kChecksumAt = kMessageHeaderBytes - 8;

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and so is every host we know");

class FieldWriter {
public:
    explicit FieldWriter(std::byte* at) : at_(at) {}
    template <class T>
    void put(T value) {
        std::memcpy(at_, &value, sizeof value);
        at_ += sizeof value;
    }

private:
    std::byte* at_;
};

class FieldReader {
public:
    explicit FieldReader(const std::byte* at) : at_(at) {}
    template <class T>
    T get() {
        T value;
        std::memcpy(&value, at_, sizeof value);
        at_ += sizeof value;
        return value;
    }

private:
    const std::byte* at_;
};

std::uint64_t checksum(const std::byte* header, std::span<const std::byte> payload) {
    const std::uint64_t of_payload = payload.empty() ? 0 : XXH3_64bits(payload.data(), payload.size());
    return XXH3_64bits_withSeed(header, kChecksumAt, of_payload);
}

}  // namespace

void encode_message(const Message& message, std::uint64_t session, MessageHeader& header) {
    FieldWriter out(header.data());
    out.put(kMagic);
    out.put(kFormat);
    out.put(static_cast<std::uint8_t>(message.kind));
    out.put(static_cast<std::uint8_t>(message.flow));
    out.put(std::uint8_t{0});
    out.put(session);
    out.put(message.version);
    out.put(message.hash);
    out.put(message.sender);
    out.put(message.group);
    out.put(message.chunk);
    out.put(message.slot);
    out.put(static_cast<std::uint32_t>(message.payload.size()));
    out.put(checksum(header.data(), message.payload));
}

Result<Message> decode_message(std::span<const std::byte> header, std::span<const std::byte> payload,
                               std::uint64_t session) {
    if (header.size() != kMessageHeaderBytes) {
        return invalid_argument(
            fmt::format("message header has {} bytes instead of {}", header.size(), kMessageHeaderBytes));
    }
    FieldReader in(header.data());
    if (const auto magic = in.get<std::uint32_t>(); magic != kMagic) {
        return invalid_argument(fmt::format("message magic is {:#010x} instead of {:#010x}", magic, kMagic));
    }
    if (const auto format = in.get<std::uint8_t>(); format != kFormat) {
        return invalid_argument(fmt::format("message format is {} instead of {}", format, kFormat));
    }
    Message message;
    const auto kind = in.get<std::uint8_t>();
    const auto flow = in.get<std::uint8_t>();
    in.get<std::uint8_t>();
    const auto from_session = in.get<std::uint64_t>();
    message.version = in.get<std::uint64_t>();
    message.hash = in.get<std::uint64_t>();
    message.sender = in.get<std::int32_t>();
    message.group = in.get<std::int32_t>();
    message.chunk = in.get<std::int32_t>();
    message.slot = in.get<std::int32_t>();
    const auto payload_bytes = in.get<std::uint32_t>();
    const auto sum = in.get<std::uint64_t>();
    if (payload_bytes != payload.size()) {
        return invalid_argument(fmt::format("message says {} payload bytes and has {}", payload_bytes, payload.size()));
    }
    if (sum != checksum(header.data(), payload)) {
        return invalid_argument("message checksum does not fit");
    }
    if (from_session != session) {
        return invalid_argument(
            fmt::format("message belongs to session {:016x}, this is {:016x}", from_session, session));
    }
    if (kind == 0 || kind > kLastMessageKind) {
        return invalid_argument(fmt::format("unknown message kind {}", kind));
    }
    if (flow >= kFlowCount) {
        return invalid_argument(fmt::format("unknown flow {}", flow));
    }
    if (message.sender < 0) {
        return invalid_argument(fmt::format("message from rank {}", message.sender));
    }
    message.kind = static_cast<MessageKind>(kind);
    message.flow = static_cast<FlowId>(flow);
    message.payload = payload;
    return message;
}

}  // namespace sluice
