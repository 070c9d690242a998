#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace sluice::test {

/// A number in [0, below), below >= 1: where a chain takes its choices from. A random engine, or the bytes of a fuzzer.
using Draw = std::function<std::uint64_t(std::uint64_t below)>;

/// By operation: how often it was accepted, and how often refused.
using OperationCounts = std::map<std::string, std::pair<int, int>>;

/// Makes a catalogue and a chain of view operations from `draw`, records it, carries it out, and compares every element and
/// the coverage proof with NaiveTensor. What differs is a failure of GoogleTest.
void check_recording_chain(Draw draw, OperationCounts& counts);

}  // namespace sluice::test
