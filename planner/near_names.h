#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice {

/// For messages about an unknown name: " (did you mean A, B?)" with up to three of `names` that are spelled like `name`, or nothing.
std::string near_names(std::string_view name, std::span<const std::string_view> names);

}  // namespace sluice
