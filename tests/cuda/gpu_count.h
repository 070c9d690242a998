#pragma once

#include <string>

namespace sluice::test {

/// Empty when this machine has at least `count` GPUs; else why a test must be skipped. Asked in a process of its own, since CUDA must not
/// start in one that forks.
std::string why_not_gpus(int count);

}  // namespace sluice::test
