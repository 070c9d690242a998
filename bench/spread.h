#pragma once

#include <nlohmann/json.hpp>

#include <algorithm>
#include <vector>

namespace sluice::bench {

/// The middle value; of an even number the mean of the middle two. `values` must not be empty.
inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// How all benchmarks report repetitions in JSON.
inline nlohmann::json spread(const std::vector<double>& values) {
    return {{"median", median(values)},
            {"min", *std::min_element(values.begin(), values.end())},
            {"max", *std::max_element(values.begin(), values.end())}};
}

}  // namespace sluice::bench
