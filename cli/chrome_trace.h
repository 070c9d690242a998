#pragma once

#include "runtime/services/trace.h"

#include <functional>
#include <string>
#include <vector>

namespace sluice::cli {

/// The trace of one rank.
struct RankTrace {
    int world_rank = 0;
    TraceLog log;
};

/// Chrome trace events, as a JSON array that Perfetto and chrome://tracing open: a process per rank, a thread per lane. The chunks of a
/// link that are read at the same time get rows of their own below it, since the spans of a thread must nest.
/// Times count from the first event of all, in microseconds; the clocks of ranks are as equal as the system clocks of their hosts.
/// `name_of(world rank)` is "trainer 0" or "worker 3".
std::string chrome_trace(const std::vector<RankTrace>& ranks, const std::function<std::string(int)>& name_of);

}  // namespace sluice::cli
