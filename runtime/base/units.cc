#include "runtime/base/units.h"

#include "runtime/base/shape.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace sluice {
namespace {

using std::chrono::milliseconds;

constexpr std::array<std::pair<std::string_view, std::int64_t>, 14> kByteUnits = {{{"", 1},
                                                                                   {"B", 1},
                                                                                   {"K", std::int64_t{1} << 10},
                                                                                   {"KB", std::int64_t{1} << 10},
                                                                                   {"KiB", std::int64_t{1} << 10},
                                                                                   {"M", std::int64_t{1} << 20},
                                                                                   {"MB", std::int64_t{1} << 20},
                                                                                   {"MiB", std::int64_t{1} << 20},
                                                                                   {"G", std::int64_t{1} << 30},
                                                                                   {"GB", std::int64_t{1} << 30},
                                                                                   {"GiB", std::int64_t{1} << 30},
                                                                                   {"T", std::int64_t{1} << 40},
                                                                                   {"TB", std::int64_t{1} << 40},
                                                                                   {"TiB", std::int64_t{1} << 40}}};
constexpr std::array<std::pair<std::string_view, std::int64_t>, 4> kTimeUnits = {
    {{"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}}};
constexpr double kMaxMilliseconds = 100.0 * 365.25 * 86400 * 1000;

template <std::size_t N>
const std::int64_t* find_unit(const std::array<std::pair<std::string_view, std::int64_t>, N>& units,
                              std::string_view name) {
    while (!name.empty() && name.front() == ' ') {
        name.remove_prefix(1);
    }
    for (const auto& unit : units) {
        if (unit.first == name) {
            return &unit.second;
        }
    }
    return nullptr;
}

}  // namespace

Result<std::int64_t> parse_bytes(std::string_view text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const std::int64_t* unit = find_unit(kByteUnits, text.substr(static_cast<std::size_t>(end - text.data())));
    if (error != std::errc() || unit == nullptr || number < 0) {
        return invalid_argument("'" + std::string(text) + "' is no size; write for example 4MiB or 1048576");
    }
    const auto bytes = checked_mul(number, *unit);
    if (!bytes) {
        return invalid_argument("size '" + std::string(text) + "' does not fit in 64 bits");
    }
    return *bytes;
}

Result<milliseconds> parse_duration(std::string_view text) {
    if (text == "0") {
        return milliseconds(0);
    }
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    const std::int64_t* unit = find_unit(kTimeUnits, text.substr(static_cast<std::size_t>(end - text.data())));
    if (error != std::errc() || unit == nullptr || !(number >= 0)) {
        return invalid_argument("'" + std::string(text) + "' is no time; write for example 250ms or 1.5s");
    }
    const double total = number * static_cast<double>(*unit);
    if (!(total <= kMaxMilliseconds)) {
        return invalid_argument("time '" + std::string(text) + "' is longer than 100 years");
    }
    const auto rounded = static_cast<std::int64_t>(std::llround(total));
    if (rounded == 0 && number > 0) {
        return invalid_argument("time '" + std::string(text) + "' is shorter than 1ms");
    }
    return milliseconds(rounded);
}

std::string format_bytes(std::int64_t bytes) {
    constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kNames.size()) {
        bytes /= 1024;
        ++unit;
    }
    return std::to_string(bytes) + kNames[unit];
}

std::string format_duration(milliseconds duration) {
    const std::int64_t count = duration.count();
    return count % 1000 == 0 ? std::to_string(count / 1000) + "s" : std::to_string(count) + "ms";
}

}  // namespace sluice
