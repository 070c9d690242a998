#include "planner/plan_frame.h"

#include "planner/plan_format.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstddef>

namespace sluice {
namespace {

constexpr std::string_view kMagic = "SLPN";
constexpr std::size_t kHeaderBytes = 8;
constexpr std::size_t kChecksumBytes = 8;

void append_number(std::string& out, std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
        out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
    }
}

std::uint64_t read_number(std::string_view text, std::size_t at, std::size_t bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
        value |= static_cast<std::uint64_t>(static_cast<unsigned char>(text[at + i])) << (8 * i);
    }
    return value;
}

}  // namespace

const char* to_string(PlanMessage kind) {
    switch (kind) {
        case PlanMessage::kDemand:
            return "demand";
        case PlanMessage::kOwnership:
            return "ownership";
        case PlanMessage::kRoute:
            return "route";
        case PlanMessage::kOwnerRoute:
            return "owner route";
        case PlanMessage::kPlanFile:
            return "plan file";
    }
    return "unknown";
}

std::string seal_plan_message(PlanMessage kind, std::string_view body) {
    std::string out;
    out.reserve(body.size() + kPlanFrameBytes);
    out += kMagic;
    append_number(out, kPlanFormatVersion, 2);
    append_number(out, static_cast<std::uint64_t>(kind), 1);
    append_number(out, 0, 1);
    out += body;
    append_number(out, XXH3_64bits(out.data(), out.size()), kChecksumBytes);
    return out;
}

Result<std::string_view> open_plan_message(PlanMessage kind, std::string_view frame) {
    const auto refuse = [&](const std::string& what) {
        return invalid_argument(fmt::format("{} of {} bytes: {}", to_string(kind), frame.size(), what));
    };
    if (frame.size() < kPlanFrameBytes) {
        return refuse(fmt::format("truncated, a message has at least {} bytes", kPlanFrameBytes));
    }
    if (frame.substr(0, kMagic.size()) != kMagic) {
        return refuse("does not start with 'SLPN', so it is no plan message");
    }
    if (const std::uint64_t version = read_number(frame, 4, 2); version != kPlanFormatVersion) {
        return refuse(
            fmt::format("has format version {}, this build reads {}; plan again", version, kPlanFormatVersion));
    }
    if (read_number(frame, 6, 1) != static_cast<std::uint64_t>(kind) || read_number(frame, 7, 1) != 0) {
        return refuse(fmt::format("is of kind {}, wanted {}", read_number(frame, 6, 1), static_cast<int>(kind)));
    }
    const std::size_t end = frame.size() - kChecksumBytes;
    if (XXH3_64bits(frame.data(), end) != read_number(frame, end, kChecksumBytes)) {
        return refuse("checksum differs, so it is truncated or altered; plan again");
    }
    return frame.substr(kHeaderBytes, end - kHeaderBytes);
}

}  // namespace sluice
