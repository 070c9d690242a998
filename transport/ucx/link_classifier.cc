#include "transport/ucx/link_classifier.h"

#include <array>
#include <string>

namespace sluice::transport {
namespace {

constexpr std::size_t kMaxLanes = 16;
// A copy of the reader's CPU, or the owner's: the loop that makes it hears nothing else meanwhile.
constexpr std::size_t kMaxCopiedGet = std::size_t{1} << 20;
// Hardware moves it; beyond this size a single get gains nothing.
constexpr std::size_t kMaxHardwareGet = std::size_t{16} << 20;
// A copy engine of the GPU, at terabytes per second: the 4 us from one get to the next count up to here.
constexpr std::size_t kMaxDeviceGet = std::size_t{256} << 20;

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// Transports whose gets of host memory need nothing of the owner, best first.
constexpr std::array<std::string_view, 7> kOneSided = {"dc_", "rc_", "gga_", "cuda_ipc", "xpmem", "cma", "knem"};
constexpr std::array<std::string_view, 3> kCopied = {"cma", "knem", "xpmem"};

int rank_of(std::string_view transport) {
    for (std::size_t i = 0; i < kOneSided.size(); ++i) {
        if (starts_with(transport, kOneSided[i])) {
            return static_cast<int>(i);
        }
    }
    return static_cast<int>(kOneSided.size());
}

void set_class(LinkInfo& info, bool one_sided) {
    info.link_class = one_sided ? LinkClass::kOneSided : LinkClass::kEmulated;
    bool copied = !one_sided;
    for (const std::string_view name : kCopied) {
        copied = copied || starts_with(info.transport, name);
    }
    info.max_get_bytes = copied                                    ? kMaxCopiedGet
                         : starts_with(info.transport, "cuda_ipc") ? kMaxDeviceGet
                                                                   : kMaxHardwareGet;
}

// Of the lane that is named first among those that the endpoint has.
std::string lane_name(ucp_ep_h endpoint, bool one_sided) {
    std::array<ucp_transport_entry_t, kMaxLanes> lanes{};
    ucp_ep_attr_t attributes{};
    attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
    attributes.transports.entries = lanes.data();
    attributes.transports.num_entries = kMaxLanes;
    attributes.transports.entry_size = sizeof(ucp_transport_entry_t);
    if (ucp_ep_query(endpoint, &attributes) != UCS_OK || attributes.transports.num_entries == 0) {
        return "unknown";
    }
    const ucp_transport_entry_t* best = lanes.data();
    for (unsigned i = 1; one_sided && i < attributes.transports.num_entries; ++i) {
        if (rank_of(lanes[i].transport_name) < rank_of(best->transport_name)) {
            best = &lanes[i];
        }
    }
    return std::string(best->transport_name) + "/" + best->device_name;
}

}  // namespace

LinkInfo one_sided_link(ucp_ep_h endpoint) {
    LinkInfo info;
    info.transport = lane_name(endpoint, true);
    set_class(info, true);
    return info;
}

LinkInfo emulated_link(ucp_ep_h endpoint) {
    LinkInfo info;
    info.transport = lane_name(endpoint, false);
    set_class(info, false);
    return info;
}

std::optional<LinkInfo> link_from_description(std::string_view description) {
    const std::size_t length = description.find(" length ");
    if (length == std::string_view::npos) {
        return std::nullopt;
    }
    // The first word with a slash names transport and device ("20.0 MB/s" comes later).
    std::string_view rest = description.substr(length + 8);
    const std::size_t slash = rest.find('/');
    if (slash == std::string_view::npos) {
        return std::nullopt;
    }
    const std::size_t begin = rest.rfind(' ', slash) + 1;
    const std::size_t end = rest.find(' ', slash);
    const std::string_view name = rest.substr(begin, end == std::string_view::npos ? end : end - begin);
    if (name == "MB/s") {
        return std::nullopt;
    }
    LinkInfo info;
    info.transport = std::string(name);
    set_class(info, rest.find("software emulation") == std::string_view::npos);
    return info;
}

std::optional<LinkInfo> link_of_get(void* request) {
    std::array<char, 512> text{};
    ucp_request_attr_t attributes{};
    attributes.field_mask = UCP_REQUEST_ATTR_FIELD_INFO_STRING | UCP_REQUEST_ATTR_FIELD_INFO_STRING_SIZE;
    attributes.debug_string = text.data();
    attributes.debug_string_size = text.size() - 1;
    if (ucp_request_query(request, &attributes) != UCS_OK) {
        return std::nullopt;
    }
    return link_from_description(text.data());
}

}  // namespace sluice::transport
