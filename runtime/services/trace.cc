#include "runtime/services/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

template <class Clock>
std::int64_t nanoseconds(std::chrono::time_point<Clock, typename Clock::duration> time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

std::string_view to_string(TraceName name) {
    switch (name) {
        case TraceName::kVersion:
            return "sync";
        case TraceName::kGather:
            return "gather";
        case TraceName::kReleaseWait:
            return "wait for release";
        case TraceName::kLeaseWait:
            return "wait for shards to be read";
        case TraceName::kHook:
            return "hook";
        case TraceName::kBeforeCommit:
            return "before commit";
        case TraceName::kCommit:
            return "commit";
        case TraceName::kPublished:
            return "published";
        case TraceName::kReleased:
            return "released";
        case TraceName::kLanded:
            return "landed";
        case TraceName::kPack:
            return "pack";
        case TraceName::kHash:
            return "hash";
        case TraceName::kScatter:
            return "scatter";
        case TraceName::kVerify:
            return "verify";
        case TraceName::kCopy:
            return "copy";
        case TraceName::kRead:
            return "read";
        case TraceName::kHeld:
            return "held";
        case TraceName::kStallPublish:
            return "stall: publish";
        case TraceName::kStallTurn:
            return "stall: gather not yet asked for";
        case TraceName::kStallLayer:
            return "stall: layer buffer";
        case TraceName::kStallPacked:
            return "stall: packed chunk";
        case TraceName::kStallStaging:
            return "stall: staging";
        case TraceName::kStallWindow:
            return "stall: in-flight window";
        case TraceName::kStallSlowWorker:
            return "stall: slow worker";
        case TraceName::kStallSlowOwner:
            return "stall: slow owner";
        case TraceName::kStallNothingLeft:
            return "stall: nothing left";
    }
    return "unknown";
}

TraceRecorder::TraceRecorder(std::size_t most_events, int copy_threads)
    : most_events_(most_events), slots_(std::make_unique<Slot[]>(most_events)) {
    wall_offset_ = nanoseconds(std::chrono::system_clock::now()) - nanoseconds(Clock::now());
    lanes_.push_back({"caller"});
    lanes_.push_back({"transport"});
    for (int i = 0; i < copy_threads; ++i) {
        lanes_.push_back({fmt::format("copy {}", i)});
    }
}

std::uint16_t TraceRecorder::add_link(std::string name) {
    const std::lock_guard lock(lanes_mutex_);
    lanes_.push_back({std::move(name), true});
    return static_cast<std::uint16_t>(lanes_.size() - 1);
}

void TraceRecorder::span(TraceEvent event, Clock::time_point begin, Clock::time_point end) noexcept {
    const std::size_t at = used_.fetch_add(1, std::memory_order_relaxed);
    if (at >= most_events_) {
        left_out_.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    event.begin = nanoseconds(begin);
    event.end = std::max(nanoseconds(end), event.begin);
    slots_[at].event = event;
    slots_[at].written.store(true, std::memory_order_release);
}

TraceLog TraceRecorder::log() const {
    TraceLog log;
    {
        const std::lock_guard lock(lanes_mutex_);
        log.lanes = lanes_;
    }
    const std::size_t used = std::min(used_.load(std::memory_order_relaxed), most_events_);
    for (std::size_t i = 0; i < used; ++i) {
        if (slots_[i].written.load(std::memory_order_acquire)) {
            log.events.push_back(slots_[i].event);
        }
    }
    log.left_out = left_out_.load(std::memory_order_relaxed);
    log.wall_offset = wall_offset_;
    return log;
}

}  // namespace sluice
