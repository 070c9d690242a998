#pragma once

#include "cli/doctor/findings.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace sluice::cli {

/// One page for people.
std::string doctor_page(const std::vector<Finding>& findings);
/// {"schema":1,"fit":...,"findings":[...],"links":[...],"ports":[...],"gpus":[...]}.
nlohmann::json doctor_json(const Examination& examination, const std::vector<Finding>& findings);

/// False when a pull would be emulated, or fail, on this node: when a finding is bad, or no link could be tried.
bool fit(const Examination& examination);

}  // namespace sluice::cli
