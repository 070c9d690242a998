#include "runtime/exchange/trace_codec.h"

#include "runtime/exchange/trace.pb.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace sluice {

std::string encode_trace(const TraceLog& log) {
    wire::TraceMessage message;
    for (const TraceLane& lane : log.lanes) {
        wire::TraceLaneMessage& out = *message.add_lanes();
        out.set_name(lane.name);
        out.set_link(lane.link);
    }
    std::int64_t before = 0;
    for (const TraceEvent& event : log.events) {
        message.add_name(static_cast<std::uint32_t>(event.name));
        message.add_lane(event.lane);
        message.add_version(event.version);
        message.add_group(event.group);
        message.add_chunk(event.chunk);
        message.add_peer(event.peer);
        message.add_bytes(event.bytes);
        message.add_begin(event.begin - before);
        message.add_length(event.end - event.begin);
        before = event.begin;
    }
    message.set_left_out(log.left_out);
    message.set_wall_offset(log.wall_offset);
    return message.SerializeAsString();
}

Result<TraceLog> decode_trace(std::string_view bytes) {
    wire::TraceMessage message;
    if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()) ||
        !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
        return internal_error(fmt::format("a trace of {} bytes is malformed", bytes.size()));
    }
    TraceLog log;
    for (const wire::TraceLaneMessage& lane : message.lanes()) {
        log.lanes.push_back({lane.name(), lane.link()});
    }
    const int events = message.name_size();
    for (const int column : {message.lane_size(), message.version_size(), message.group_size(), message.chunk_size(),
                             message.peer_size(), message.bytes_size(), message.begin_size(), message.length_size()}) {
        if (column != events) {
            return internal_error(fmt::format("a trace has {} events but a column of {}", events, column));
        }
    }
    // Unsigned, so that whatever comes may be added up.
    std::uint64_t begin = 0;
    for (int i = 0; i < events; ++i) {
        begin += static_cast<std::uint64_t>(message.begin(i));
        TraceEvent event;
        event.begin = static_cast<std::int64_t>(begin);
        event.end = static_cast<std::int64_t>(begin + static_cast<std::uint64_t>(message.length(i)));
        if (message.name(i) > static_cast<std::uint32_t>(kLastTraceName) || message.lane(i) >= log.lanes.size() ||
            message.lane(i) > std::numeric_limits<std::uint16_t>::max() || event.end < event.begin) {
            return internal_error(fmt::format("event {} of a trace has name {}, lane {} of {} and length {}", i,
                                              message.name(i), message.lane(i), log.lanes.size(), message.length(i)));
        }
        event.name = static_cast<TraceName>(message.name(i));
        event.lane = static_cast<std::uint16_t>(message.lane(i));
        event.version = message.version(i);
        event.group = message.group(i);
        event.chunk = message.chunk(i);
        event.peer = message.peer(i);
        event.bytes = message.bytes(i);
        log.events.push_back(event);
    }
    log.left_out = message.left_out();
    log.wall_offset = message.wall_offset();
    return log;
}

}  // namespace sluice
