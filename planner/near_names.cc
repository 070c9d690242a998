#include "planner/near_names.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

namespace sluice {

namespace {

std::string folded(std::string_view text) {
    std::string result;
    for (const char c : text) {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
            result.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
        }
    }
    return result;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
        }
    }
    return row.back();
}

}  // namespace

std::string near_names(std::string_view name, std::span<const std::string_view> names) {
    constexpr std::size_t kMost = 3;
    constexpr std::size_t kLongest = 200;  // The distance is quadratic, and nobody mistypes a name that long.
    const std::string wanted = folded(name.substr(0, kLongest));
    std::vector<std::pair<std::size_t, std::size_t>> near;  // distance, index: those alike stay in their order
    for (std::size_t n = 0; n < names.size(); ++n) {
        const std::string text = folded(names[n]);
        const bool part =
            wanted.size() >= 3 && (text.find(wanted) != std::string::npos || wanted.find(text) != std::string::npos);
        const std::size_t distance = part ? 1 : edit_distance(wanted, text);
        if (distance <= std::max<std::size_t>(2, wanted.size() / 3)) {
            near.emplace_back(distance, n);
        }
    }
    std::sort(near.begin(), near.end());
    std::string text;
    for (std::size_t i = 0; i < near.size() && i < kMost; ++i) {
        text.append(i == 0 ? " (did you mean " : ", ").append(names[near[i].second]);
    }
    return text.empty() ? text : text + "?)";
}

}  // namespace sluice
