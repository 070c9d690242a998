#include "tests/planner/layouts/best_balance.h"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace sluice::test {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Coordinates on one axis: all sums of `start` and, for each loop, a multiple below `count` of `step`.
struct AxisWalk {
    std::int64_t start = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> loops;  // (count, step)
};

// A record as an independent walk on every axis of its tensor (in elements of the tensor), or nothing where a run crosses
// from one axis into the next in another way than over whole rows.
std::optional<std::vector<AxisWalk>> axis_walks(const CatalogueTensor& tensor, const StridedCopy& copy) {
    const std::int64_t element = size_of(tensor.dtype);
    const std::size_t axes = tensor.shape.size();
    std::vector<std::int64_t> strides(axes, 1);
    for (std::size_t d = axes; d-- > 1;) {
        strides[d - 1] = strides[d] * tensor.shape[d];
    }
    std::vector<AxisWalk> walks(axes);
    std::int64_t rest = copy.src_offset / element;
    for (std::size_t d = 0; d < axes; ++d) {
        walks[d].start = rest / strides[d];
        rest %= strides[d];
    }
    for (std::size_t k = 0; k < copy.sizes.size(); ++k) {
        std::int64_t count = copy.sizes[k];
        std::int64_t step = copy.src_strides[k] / element;
        while (count > 1) {
            std::size_t d = 0;
            while (d < axes && strides[d] > step) {
                ++d;
            }
            if (d == axes || step % strides[d] != 0) {
                return std::nullopt;
            }
            const std::int64_t units = step / strides[d];
            std::int64_t here = count;
            if (walks[d].start + units * (count - 1) >= tensor.shape[d]) {
                here = tensor.shape[d] / units;
                if (here < 2 || tensor.shape[d] % units != 0 || count % here != 0) {
                    return std::nullopt;
                }
            }
            walks[d].loops.emplace_back(here, units);
            count /= here;
            step *= here;
        }
    }
    for (std::size_t d = 0; d < axes; ++d) {
        std::int64_t last = walks[d].start;
        for (const auto& [count, step] : walks[d].loops) {
            last += (count - 1) * step;
        }
        if (last >= tensor.shape[d]) {
            return std::nullopt;
        }
    }
    return walks;
}

// How many coordinates of the walk lie in each interval.
std::vector<std::int64_t> count_in_intervals(const AxisWalk& walk, const std::vector<std::int64_t>& cuts) {
    std::vector<std::int64_t> out(cuts.size() - 1, 0);
    if (walk.loops.size() == 1 && walk.loops[0].second == 1) {
        const std::int64_t end = walk.start + walk.loops[0].first;
        for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] = std::max<std::int64_t>(0, std::min(end, cuts[i + 1]) - std::max(walk.start, cuts[i]));
        }
        return out;
    }
    std::vector<std::int64_t> coordinates{walk.start};
    for (const auto& [count, step] : walk.loops) {
        const std::size_t before = coordinates.size();
        for (std::int64_t n = 1; n < count; ++n) {
            for (std::size_t i = 0; i < before; ++i) {
                coordinates.push_back(coordinates[i] + n * step);
            }
        }
    }
    for (const std::int64_t x : coordinates) {
        ++out[at(std::upper_bound(cuts.begin(), cuts.end(), x) - cuts.begin() - 1)];
    }
    return out;
}

}  // namespace

OwnerMap::OwnerMap(const Catalogue& catalogue, std::span<const Ownership> owners)
    : catalogue_(catalogue), owners_(static_cast<int>(owners.size())), tensors_(catalogue.size()) {
    std::vector<std::vector<std::pair<int, const OwnedRegion*>>> holders(catalogue.size());
    for (std::size_t rank = 0; rank < owners.size(); ++rank) {
        for (const OwnedRegion& region : owners[rank].regions) {
            holders[at(region.tensor)].emplace_back(static_cast<int>(rank), &region);
        }
    }
    std::map<std::vector<int>, std::int32_t> numbers;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
        Tensor& tensor = tensors_[t];
        const Dims& shape = catalogue.tensors()[t].shape;
        std::size_t cells = 1;
        for (std::size_t d = 0; d < shape.size(); ++d) {
            std::vector<std::int64_t>& cuts = tensor.cuts.emplace_back(std::vector<std::int64_t>{0, shape[d]});
            for (const auto& [rank, region] : holders[t]) {
                cuts.push_back(region->begin[d]);
                cuts.push_back(region->end[d]);
            }
            std::sort(cuts.begin(), cuts.end());
            cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
            cells *= std::max<std::size_t>(cuts.size(), 1) - 1;
        }
        std::vector<std::vector<int>> sets(cells);
        for (const auto& [rank, region] : holders[t]) {
            std::vector<std::size_t> inside{0};
            for (std::size_t d = 0; d < shape.size(); ++d) {
                const std::vector<std::int64_t>& cuts = tensor.cuts[d];
                std::vector<std::size_t> next;
                for (const std::size_t cell : inside) {
                    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
                        if (region->begin[d] <= cuts[i] && cuts[i + 1] <= region->end[d]) {
                            next.push_back(cell * (cuts.size() - 1) + i);
                        }
                    }
                }
                inside = std::move(next);
            }
            for (const std::size_t cell : inside) {
                if (sets[cell].empty() || sets[cell].back() != rank) {
                    sets[cell].push_back(rank);
                }
            }
        }
        for (const std::vector<int>& set : sets) {
            const auto [place, fresh] = numbers.emplace(set, static_cast<std::int32_t>(sets_.size()));
            if (fresh) {
                sets_.push_back(set);
            }
            tensor.cells.push_back(place->second);
        }
    }
}

void OwnerMap::add_record(const CopyRecord& record, std::int64_t workers, std::vector<std::int64_t>& bytes) const {
    const CatalogueTensor& tensor = catalogue_[record.tensor];
    const Tensor& map = tensors_[at(record.tensor)];
    const std::int64_t each = std::min(size_of(record.source_dtype), size_of(record.parameter_dtype)) * workers;
    ASSERT_EQ(record.copy.item, size_of(tensor.dtype)) << tensor.name;
    if (record.copy.items() == 0) {
        return;
    }
    const auto walks = axis_walks(tensor, record.copy);
    ASSERT_TRUE(walks.has_value()) << tensor.name << ": a walk that this test cannot count";
    std::vector<std::pair<std::size_t, std::int64_t>> cells{{0, each}};  // (cell so far, bytes)
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
        const std::vector<std::int64_t> counts = count_in_intervals((*walks)[d], map.cuts[d]);
        std::vector<std::pair<std::size_t, std::int64_t>> next;
        for (const auto& [cell, sum] : cells) {
            for (std::size_t i = 0; i < counts.size(); ++i) {
                if (counts[i] > 0) {
                    next.emplace_back(cell * counts.size() + i, sum * counts[i]);
                }
            }
        }
        cells = std::move(next);
    }
    for (const auto& [cell, sum] : cells) {
        bytes[at(map.cells[cell])] += sum;
    }
}

std::map<std::vector<int>, std::int64_t> OwnerMap::work(std::span<const DemandRequest> demands) const {
    std::vector<std::int64_t> bytes(sets_.size(), 0);
    for (const DemandRequest& request : demands) {
        for (const CopyRecord& record : request.demand->records) {
            add_record(record, static_cast<std::int64_t>(request.workers.size()), bytes);
        }
    }
    std::map<std::vector<int>, std::int64_t> out;
    for (std::size_t s = 0; s < sets_.size(); ++s) {
        if (bytes[s] > 0) {
            EXPECT_FALSE(sets_[s].empty()) << bytes[s] << " bytes have no owner";
            out.emplace(sets_[s], bytes[s]);
        }
    }
    return out;
}

double least_busiest(const std::map<std::vector<int>, std::int64_t>& work, int owners) {
    using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
    using Edge = Traits::edge_descriptor;
    using Properties = boost::property<
        boost::edge_capacity_t, std::int64_t,
        boost::property<boost::edge_residual_capacity_t, std::int64_t, boost::property<boost::edge_reverse_t, Edge>>>;
    using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, Properties>;

    std::int64_t total = 0;
    std::vector<double> spread(at(owners), 0);
    for (const auto& [set, bytes] : work) {
        total += bytes;
        for (const int rank : set) {
            spread[at(rank)] += static_cast<double>(bytes) / static_cast<double>(set.size());
        }
    }
    const auto fits = [&](std::int64_t cap) {
        const std::size_t sets = work.size();
        Graph graph(sets + at(owners) + 2);
        const std::size_t source = sets + at(owners);
        const std::size_t sink = source + 1;
        const auto connect = [&](std::size_t from, std::size_t to, std::int64_t capacity) {
            const Edge there = boost::add_edge(from, to, graph).first;
            const Edge back = boost::add_edge(to, from, graph).first;
            boost::put(boost::edge_capacity, graph, there, capacity);
            boost::put(boost::edge_capacity, graph, back, std::int64_t{0});
            boost::put(boost::edge_reverse, graph, there, back);
            boost::put(boost::edge_reverse, graph, back, there);
        };
        std::size_t s = 0;
        for (const auto& [set, bytes] : work) {
            connect(source, s, bytes);
            for (const int rank : set) {
                connect(s, sets + at(rank), bytes);
            }
            ++s;
        }
        for (std::size_t rank = 0; rank < at(owners); ++rank) {
            connect(sets + rank, sink, cap);
        }
        return boost::push_relabel_max_flow(graph, source, sink) == total;
    };
    double low = static_cast<double>(total) / std::max(1, owners);
    double high = *std::max_element(spread.begin(), spread.end());
    while (high > low * 1.0005) {
        const double middle = (low + high) / 2;
        (fits(static_cast<std::int64_t>(middle)) ? high : low) = middle;
    }
    return low;
}

std::int64_t busiest(const Plan& plan, int owners) {
    std::vector<std::int64_t> load(at(owners), 0);
    for (const Route& route : plan.routes) {
        for (const Chunk& chunk : route.chunks) {
            load[at(chunk.owner)] += chunk.wire_bytes * static_cast<std::int64_t>(route.workers.size());
        }
    }
    return *std::max_element(load.begin(), load.end());
}

}  // namespace sluice::test
