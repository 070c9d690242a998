#include "cli/chrome_trace.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

namespace sluice::cli {
namespace {

std::string quoted(const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const char* category(TraceName name) { return is_stall(name) ? "stall" : is_instant(name) ? "protocol" : "work"; }

/// Writes the events of one rank.
class ProcessWriter {
public:
    ProcessWriter(const RankTrace& rank, std::int64_t origin, const std::function<std::string(int)>& name_of,
                  int& threads, std::string& out)
        : rank_(rank), origin_(origin), name_of_(name_of), threads_(threads), out_(out) {}

    void write() {
        metadata("process_name", 0, "name", quoted(name_of_(rank_.world_rank)));
        metadata("process_sort_index", 0, "sort_index", std::to_string(rank_.world_rank));
        std::vector<std::vector<const TraceEvent*>> by_lane(rank_.log.lanes.size());
        for (const TraceEvent& event : rank_.log.events) {
            by_lane[event.lane].push_back(&event);
        }
        for (std::size_t lane = 0; lane < by_lane.size(); ++lane) {
            write_lane(rank_.log.lanes[lane], by_lane[lane]);
        }
        if (rank_.log.left_out > 0) {
            next();
            fmt::format_to(std::back_inserter(out_),
                           R"({{"ph":"i","s":"p","name":"{} later events were left out","pid":{},"tid":{},"ts":0}})",
                           rank_.log.left_out, process(), threads_);
        }
    }

private:
    // 0 is the idle task to some viewers.
    [[nodiscard]] int process() const { return rank_.world_rank + 1; }

    void next() { out_ += out_.size() > 1 ? ",\n" : "\n"; }

    void metadata(const char* name, int thread, const char* key, const std::string& value) {
        next();
        fmt::format_to(std::back_inserter(out_), R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"{}":{}}}}})",
                       name, process(), thread, key, value);
    }

    int add_thread(const std::string& name) {
        const int thread = ++threads_;
        metadata("thread_name", thread, "name", quoted(name));
        metadata("thread_sort_index", thread, "sort_index", std::to_string(thread));
        return thread;
    }

    void write_lane(const TraceLane& lane, std::vector<const TraceEvent*>& events) {
        // Of two that begin together the longer one is the outer one.
        std::stable_sort(events.begin(), events.end(), [](const TraceEvent* a, const TraceEvent* b) {
            return a->begin != b->begin ? a->begin < b->begin : a->end > b->end;
        });
        struct Row {
            int thread = 0;
            std::int64_t end = std::numeric_limits<std::int64_t>::min();
        };
        std::vector<Row> rows{{add_thread(lane.name)}};
        for (const TraceEvent* event : events) {
            std::size_t row = 0;
            while (lane.link && rows[row].end > event->begin) {
                if (++row == rows.size()) {
                    rows.push_back({add_thread(fmt::format("{} ({})", lane.name, row + 1))});
                }
            }
            rows[row].end = event->end;
            write_event(*event, rows[row].thread);
        }
    }

    // Nanoseconds as microseconds, exactly.
    void write_time(const char* key, std::int64_t ns) {
        fmt::format_to(std::back_inserter(out_), R"("{}":{}.{:03})", key, ns / 1000, ns % 1000);
    }

    void write_event(const TraceEvent& event, int thread) {
        next();
        const bool named = event.name == TraceName::kReleaseWait && event.peer >= 0;
        fmt::format_to(std::back_inserter(out_), R"({{"name":{},"cat":"{}","pid":{},"tid":{},)",
                       named ? quoted(fmt::format("{} by {}", to_string(event.name), name_of_(event.peer)))
                             : fmt::format(R"("{}")", to_string(event.name)),
                       category(event.name), process(), thread);
        write_time("ts", event.begin + rank_.log.wall_offset - origin_);
        if (is_instant(event.name)) {
            out_ += R"(,"ph":"i","s":"t")";
        } else {
            out_ += R"(,"ph":"X",)";
            write_time("dur", event.end - event.begin);
        }
        fmt::format_to(std::back_inserter(out_), R"(,"args":{{"version":{})", event.version);
        for (const auto& [key, value] : {std::pair<const char*, std::int64_t>{"group", event.group},
                                         {"chunk", event.chunk},
                                         {"bytes", event.bytes}}) {
            if (value >= 0) {
                fmt::format_to(std::back_inserter(out_), R"(,"{}":{})", key, value);
            }
        }
        if (event.peer >= 0) {
            out_ += R"(,"peer":)" + peer_name(event.peer);
        }
        out_ += "}}";
    }

    const std::string& peer_name(int peer) {
        std::string& name = peer_names_[peer];
        if (name.empty()) {
            name = quoted(name_of_(peer));
        }
        return name;
    }

    const RankTrace& rank_;
    std::int64_t origin_;
    const std::function<std::string(int)>& name_of_;
    int& threads_;  // of all processes: a viewer may take two threads of one number for one
    std::string& out_;
    std::map<int, std::string> peer_names_;
};

}  // namespace

std::string chrome_trace(const std::vector<RankTrace>& ranks, const std::function<std::string(int)>& name_of) {
    std::int64_t origin = std::numeric_limits<std::int64_t>::max();
    for (const RankTrace& rank : ranks) {
        for (const TraceEvent& event : rank.log.events) {
            origin = std::min(origin, event.begin + rank.log.wall_offset);
        }
    }
    std::string out = "[";
    int threads = 0;
    for (const RankTrace& rank : ranks) {
        ProcessWriter(rank, origin, name_of, threads, out).write();
    }
    out += "\n]\n";
    return out;
}

}  // namespace sluice::cli
