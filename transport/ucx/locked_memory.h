#pragma once

#include <string>

namespace sluice::transport {

/// How much memory this process may lock, which is what devices need of it, and how to raise that; the end of an error's sentence.
/// Empty when there is no limit.
std::string locked_memory_hint();

}  // namespace sluice::transport
