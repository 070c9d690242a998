#pragma once

#include "planner/catalogue.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Digests of the runs [begin + i * step, begin + (i + 1) * step) of a catalogue's order, for i < count. Behind its end a run
/// is short or empty. Two catalogues whose runs have equal digests are equal there.
std::vector<std::uint64_t> run_digests(const Catalogue& catalogue, std::int64_t begin, std::int64_t step, int count);

/// How two catalogues differ at the first place of their order where they do: which tensor, which field, both values. `theirs`
/// is the other's tensor at place `place`, or nothing behind its end. The names say whose catalogues they are.
std::string difference_at(const Catalogue& mine, std::int64_t place, const std::optional<CatalogueTensor>& theirs,
                          std::string_view my_name, std::string_view their_name);

/// The same of two catalogues at hand; nothing when they are equal.
std::optional<std::string> first_difference(const Catalogue& mine, const Catalogue& theirs, std::string_view my_name,
                                            std::string_view their_name);

}  // namespace sluice
