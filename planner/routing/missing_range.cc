#include "planner/routing/missing_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

// A message names at most this many boxes, and ranks per box.
constexpr std::size_t kMostNamed = 4;

std::string range_text(const Dims& begin, const Dims& end) {
    if (begin.empty()) {
        return "the scalar";
    }
    std::string out = "[";
    for (std::size_t d = 0; d < begin.size(); ++d) {
        out += fmt::format("{}{}:{}", d == 0 ? "" : ", ", begin[d], end[d]);
    }
    return out + "]";
}

std::string ranks_text(std::span<const int> ranks) {
    const std::size_t named = std::min(ranks.size(), kMostNamed);
    std::string out =
        fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks.subspan(0, named), ", "));
    return ranks.size() > named ? fmt::format("{} and {} more", out, ranks.size() - named) : out;
}

}  // namespace

Status missing_range(const CatalogueTensor& tensor, const SourceAxes& axes, const SourceWalk& walk,
                     std::span<const CellOwner> offered, std::span<const int> workers, std::span<const int> allowed) {
    Dims begin;
    Dims end;
    for (std::size_t a = 0; a < tensor.shape.size(); ++a) {
        const std::int64_t per_step = a + 1 == tensor.shape.size() ? axes.elements_per_step : 1;
        begin.push_back(walk.start[a] * per_step);
        end.push_back((walk.last(a) + 1) * per_step);
    }
    std::map<std::pair<Dims, Dims>, std::vector<int>> boxes;
    for (const CellOwner& box : offered) {
        if (allowed.empty() || std::find(allowed.begin(), allowed.end(), box.rank) != allowed.end()) {
            boxes[{box.region->begin, box.region->end}].push_back(box.rank);
        }
    }
    std::string what_is;
    std::size_t named = 0;
    for (const auto& [box, ranks] : boxes) {
        if (named++ == kMostNamed) {
            what_is += fmt::format(" and {} more ranges", boxes.size() - kMostNamed);
            break;
        }
        what_is += fmt::format("{}{} by trainer {}", what_is.empty() ? "" : ", ", range_text(box.first, box.second),
                               ranks_text(ranks));
    }
    if (what_is.empty()) {
        what_is =
            allowed.empty() ? "nothing by any trainer rank" : fmt::format("nothing by trainer {}", ranks_text(allowed));
    }
    const std::string who = workers.empty() ? "nobody named" : "worker " + ranks_text(workers);
    return plan_refused(
        fmt::format("tensor {} of shape {}: {} wants range {}, which nobody owns; offered: {}; let a trainer rank "
                    "declare the missing part",
                    tensor.name, to_string(tensor.shape), who, range_text(begin, end), what_is));
}

}  // namespace sluice
