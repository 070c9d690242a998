#pragma once

#include "runtime/exchange/bootstrap.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace sluice {

/// The bootstraps of `size` ranks that are threads of this process, by rank. Each may outlive the others; a rank that is gone
/// is one that nobody hears from. Messages of more than `most_bytes` are refused.
std::vector<std::unique_ptr<Bootstrap>> in_process_bootstraps(int size, std::size_t most_bytes = Bootstrap::kMostBytes);

}  // namespace sluice
