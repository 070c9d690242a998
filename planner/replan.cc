#include "planner/replan.h"

#include "planner/routing/fingerprint.h"
#include "planner/routing/route_rest.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace sluice {
namespace {

// Bytes [begin, end) of a parameter.
using Range = std::pair<std::int64_t, std::int64_t>;
using Ranges = std::vector<Range>;  // rising, apart

Range written(const StridedCopy& copy, std::int64_t item) {
    std::int64_t end = copy.dst_offset + item;
    for (std::size_t d = 0; d < copy.sizes.size(); ++d) {
        end += (copy.sizes[d] - 1) * copy.dst_strides[d];
    }
    return {copy.dst_offset, end};
}

Range written(const CopyRecord& record) {
    return written(record.copy, record.converts() ? size_of(record.parameter_dtype) : record.copy.item);
}

Range written(const Piece& piece) {
    return written(piece.copy, piece.converts() ? size_of(piece.parameter_dtype) : piece.copy.item);
}

// The first of the ranges that ends behind `begin`.
Ranges::const_iterator first_behind(const Ranges& ranges, std::int64_t begin) {
    return std::partition_point(ranges.begin(), ranges.end(), [begin](const Range& r) { return r.second <= begin; });
}

bool touches(const Ranges& ranges, const Range& range) {
    const auto at = first_behind(ranges, range.first);
    return at != ranges.end() && at->first < range.second;
}

Ranges merged(Ranges ranges) {
    std::sort(ranges.begin(), ranges.end());
    Ranges out;
    for (const Range& range : ranges) {
        if (!out.empty() && range.first <= out.back().second) {
            out.back().second = std::max(out.back().second, range.second);
        } else {
            out.push_back(range);
        }
    }
    return out;
}

auto key_of(const CopyRecord& r) {
    return std::tie(r.parameter, r.copy.dst_offset, r.tensor, r.source_dtype, r.parameter_dtype, r.copy.src_offset,
                    r.copy.item, r.copy.sizes, r.copy.src_strides, r.copy.dst_strides);
}

std::vector<const CopyRecord*> sorted_records(const Demand& demand) {
    std::vector<const CopyRecord*> out;
    for (const CopyRecord& record : demand.records) {
        if (record.copy.items() > 0) {
            out.push_back(&record);
        }
    }
    std::sort(out.begin(), out.end(), [](const CopyRecord* a, const CopyRecord* b) { return key_of(*a) < key_of(*b); });
    return out;
}

/// How one demand's records changed.
struct Change {
    std::vector<const CopyRecord*> kept;
    std::vector<const CopyRecord*> routed;  // of the new demand
    std::map<ParameterId, Ranges> ranges;   // all that changed records write, old and new
    std::set<GroupId> groups;

    Change(const Catalogue& catalogue, const Demand& before, const Demand& after) {
        const std::vector<const CopyRecord*> old_records = sorted_records(before);
        const std::vector<const CopyRecord*> new_records = sorted_records(after);
        auto was = old_records.begin();
        for (const CopyRecord* record : new_records) {
            while (was != old_records.end() && key_of(**was) < key_of(*record)) {
                mark(catalogue, **was++);
            }
            if (was != old_records.end() && key_of(**was) == key_of(*record)) {
                kept.push_back(record);
                ++was;
            } else {
                routed.push_back(record);
                mark(catalogue, *record);
            }
        }
        std::for_each(was, old_records.end(), [&](const CopyRecord* record) { mark(catalogue, *record); });
        // A record between the bytes of a changed one goes with it, so that whole ranges can be taken out of the route.
        for (bool grew = true; grew;) {
            for (auto& [parameter, list] : ranges) {
                list = merged(std::move(list));
            }
            std::vector<const CopyRecord*> stays;
            std::vector<const CopyRecord*> goes;
            std::partition_copy(kept.begin(), kept.end(), std::back_inserter(stays), std::back_inserter(goes),
                                [&](const CopyRecord* record) {
                                    const auto found = ranges.find(record->parameter);
                                    return found == ranges.end() || !touches(found->second, written(*record));
                                });
            kept = std::move(stays);
            grew = !goes.empty();
            for (const CopyRecord* record : goes) {
                routed.push_back(record);
                mark(catalogue, *record);
            }
        }
    }

private:
    void mark(const Catalogue& catalogue, const CopyRecord& record) {
        ranges[record.parameter].push_back(written(record));
        groups.insert(catalogue[record.tensor].group);
    }
};

// Appends what is left of a piece without the ranges.
void take_out(const Piece& piece, const Ranges& ranges, std::vector<Piece>& out) {
    const Range range = written(piece);
    auto at = first_behind(ranges, range.first);
    if (at == ranges.end() || at->first >= range.second) {
        out.push_back(piece);
        return;
    }
    if (at->first <= range.first && range.second <= at->second) {
        return;
    }
    if (piece.copy.sizes.empty()) {
        for (std::int64_t begin = range.first; begin < range.second; ++at) {
            const std::int64_t end = at == ranges.end() ? range.second : std::min(range.second, at->first);
            if (begin < end) {
                Piece part = piece;
                part.copy.src_offset += begin - range.first;
                part.copy.dst_offset = begin;
                part.copy.item = end - begin;
                out.push_back(std::move(part));
            }
            if (at == ranges.end()) {
                break;
            }
            begin = std::max(end, at->second);
        }
        return;
    }
    const std::int64_t rows = piece.copy.sizes[0];
    const auto rows_from = [&](std::int64_t begin, std::int64_t end) {
        Piece part = piece;
        part.copy = coalesce(slice_outer(piece.copy, begin, end), piece.converts());
        return part;
    };
    std::int64_t untouched = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
        const Piece one = rows_from(row, row + 1);
        if (!touches(ranges, written(one))) {
            continue;
        }
        if (untouched < row) {
            out.push_back(rows_from(untouched, row));
        }
        take_out(one, ranges, out);
        untouched = row + 1;
    }
    if (untouched < rows) {
        out.push_back(rows_from(untouched, rows));
    }
}

KeptRoute kept_route(const Route& old_route, const Change& change) {
    KeptRoute kept;
    for (const Chunk& chunk : old_route.chunks) {
        if (!change.groups.contains(chunk.group)) {
            kept.whole.push_back(chunk);
            continue;
        }
        Chunk left = chunk;
        left.pieces.clear();
        for (const Piece& piece : chunk.pieces) {
            const auto ranges = change.ranges.find(piece.parameter);
            if (ranges == change.ranges.end()) {
                left.pieces.push_back(piece);
            } else {
                take_out(piece, ranges->second, left.pieces);
            }
        }
        if (!left.pieces.empty()) {
            kept.cut.push_back(std::move(left));
        }
    }
    return kept;
}

Status check_same_workers(std::span<const DemandRequest> before, std::span<const DemandRequest> after) {
    const auto same = [](const DemandRequest& a, const DemandRequest& b) {
        return a.workers == b.workers && a.allowed_owners == b.allowed_owners && a.self == b.self &&
               a.mapped_owners == b.mapped_owners &&
               std::equal(a.demand->parameters.begin(), a.demand->parameters.end(), b.demand->parameters.begin(),
                          b.demand->parameters.end(), [](const Parameter& x, const Parameter& y) {
                              return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape;
                          });
    };
    const auto differs = std::mismatch(before.begin(), before.end(), after.begin(), after.end(), same);
    if (before.size() != after.size() || differs.first != before.end()) {
        return plan_refused(
            fmt::format("demand {} of {} has other parameters, workers or mapped owners than in the old plan with {}; "
                        "only an expert map may change, plan from scratch",
                        differs.second - after.begin(), after.size(), before.size()));
    }
    return ok_status();
}

}  // namespace

Status check_fingerprint(const Plan& plan, const Catalogue& catalogue, std::span<const Ownership> owners,
                         std::span<const DemandRequest> demands, const RouteOptions& options) {
    const std::uint64_t wanted = plan_fingerprint(catalogue, owners, demands, options);
    if (plan.fingerprint != wanted) {
        return plan_refused(fmt::format(
            "plan {:016x} was made for another catalogue, layout, expert map or option than these, whose plan "
            "is {:016x}; plan again",
            plan.fingerprint, wanted));
    }
    return ok_status();
}

Result<Replan> replan(const Catalogue& catalogue, std::span<const Ownership> owners,
                      std::span<const DemandRequest> old_demands, const Plan& old_plan,
                      std::span<const DemandRequest> new_demands, const RouteOptions& options) {
    SLUICE_RETURN_IF_ERROR(check_fingerprint(old_plan, catalogue, owners, old_demands, options));
    SLUICE_RETURN_IF_ERROR(check_same_workers(old_demands, new_demands));
    Replan out;
    std::vector<Demand> changed(new_demands.size());
    std::vector<DemandRequest> requests(new_demands.begin(), new_demands.end());
    std::vector<KeptRoute> kept;
    for (std::size_t d = 0; d < new_demands.size(); ++d) {
        const Change change(catalogue, *old_demands[d].demand, *new_demands[d].demand);
        changed[d].parameters = new_demands[d].demand->parameters;
        for (const CopyRecord* record : change.routed) {
            changed[d].records.push_back(*record);
        }
        requests[d].demand = &changed[d];
        kept.push_back(kept_route(old_plan.routes[d], change));
        out.records_kept += change.kept.size();
        out.records_routed += change.routed.size();
        out.chunks_kept += kept.back().whole.size();
    }
    SLUICE_ASSIGN_OR_RETURN(out.plan, route_rest(catalogue, owners, requests, kept, options));
    for (const Route& route : out.plan.routes) {
        out.chunks_made += route.chunks.size();
    }
    out.chunks_made -= out.chunks_kept;
    out.plan.fingerprint = plan_fingerprint(catalogue, owners, new_demands, options);
    return out;
}

}  // namespace sluice
