#pragma once

#include "runtime/base/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sluice::bench {

/// Refuses `asked` names that none of the series `known` has: nothing would be measured.
template <class AllSeries>
Status check_series(const std::vector<std::string>& asked, const AllSeries& known) {
    for (const std::string& name : asked) {
        if (std::ranges::none_of(known, [&](const auto& series) { return series.name == name; })) {
            std::string names;
            for (const auto& series : known) {
                names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", series.name);
            }
            return invalid_argument(fmt::format("--series \"{}\" is not known; use one of {}", name, names));
        }
    }
    return ok_status();
}

}  // namespace sluice::bench
