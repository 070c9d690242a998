#include "planner/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <set>
#include <vector>

namespace sluice {
namespace {

constexpr double kBytesPerGbit = 1e9 / 8;

// Bytes in and out of every node's NICs.
struct NodeTraffic {
    std::vector<double> in;
    std::vector<double> out;
    explicit NodeTraffic(std::size_t nodes) : in(nodes, 0), out(nodes, 0) {}
};

class Cluster {
public:
    Cluster(const ClusterSpec& spec, int trainers, int workers)
        : spec_(spec),
          trainers_(trainers),
          workers_(workers),
          trainer_nodes_(nodes_for(trainers)),
          nodes_(trainer_nodes_ + nodes_for(workers)) {}

    [[nodiscard]] std::size_t nodes() const { return nodes_; }
    [[nodiscard]] std::size_t trainer_node(int rank) const {
        return static_cast<std::size_t>(rank / spec_.gpus_per_node);
    }
    [[nodiscard]] std::size_t worker_node(int rank) const {
        return trainer_nodes_ + static_cast<std::size_t>(rank / spec_.gpus_per_node);
    }
    // Bytes per second and direction: as many NICs as the node has ranks.
    [[nodiscard]] double rate(std::size_t node) const { return ranks_on(node).second * spec_.nic_gbps * kBytesPerGbit; }
    // First rank and number of ranks, within their side.
    [[nodiscard]] std::pair<int, int> ranks_on(std::size_t node) const {
        const bool trainer = node < trainer_nodes_;
        const int first = static_cast<int>(trainer ? node : node - trainer_nodes_) * spec_.gpus_per_node;
        return {first, std::min(spec_.gpus_per_node, (trainer ? trainers_ : workers_) - first)};
    }
    [[nodiscard]] std::string describe(std::size_t node, const char* direction) const {
        const auto [first, count] = ranks_on(node);
        const char* side = node < trainer_nodes_ ? "trainers" : "workers";
        return fmt::format("{} of node {} ({} {}-{})", direction, node, side, first, first + count - 1);
    }

private:
    [[nodiscard]] std::size_t nodes_for(int ranks) const {
        return static_cast<std::size_t>((ranks + spec_.gpus_per_node - 1) / spec_.gpus_per_node);
    }
    ClusterSpec spec_;
    int trainers_;
    int workers_;
    std::size_t trainer_nodes_;
    std::size_t nodes_;
};

double slowest(const Cluster& cluster, const std::vector<double>& bytes, std::size_t* where = nullptr) {
    double most = 0;
    for (std::size_t n = 0; n < bytes.size(); ++n) {
        if (const double seconds = bytes[n] / cluster.rate(n); seconds > most) {
            most = seconds;
            if (where != nullptr) {
                *where = n;
            }
        }
    }
    return most;
}

void add_pulls(const Cluster& cluster, const Plan& plan, std::vector<NodeTraffic>& traffic,
               const std::vector<std::size_t>& slot_of_group) {
    for (const Route& route : plan.routes) {
        for (const Chunk& chunk : route.chunks) {
            NodeTraffic& t = traffic[slot_of_group[static_cast<std::size_t>(chunk.group)]];
            const auto bytes = static_cast<double>(chunk.wire_bytes);
            for (const int worker : route.workers) {
                t.in[cluster.worker_node(worker)] += bytes;
                t.out[cluster.trainer_node(chunk.owner)] += bytes;
            }
        }
    }
}

// Gathers between nodes share the trainers' NICs with the pulls.
void add_gathers(const Cluster& cluster, const Plan& gather, std::vector<NodeTraffic>& traffic,
                 const std::vector<std::size_t>& slot_of_group) {
    for (std::size_t rank = 0; rank < gather.routes.size(); ++rank) {
        const std::size_t reader = cluster.trainer_node(static_cast<int>(rank));
        for (const Chunk& chunk : gather.routes[rank].chunks) {
            const std::size_t owner = cluster.trainer_node(chunk.owner);
            if (owner != reader) {
                NodeTraffic& t = traffic[slot_of_group[static_cast<std::size_t>(chunk.group)]];
                t.in[reader] += static_cast<double>(chunk.wire_bytes);
                t.out[owner] += static_cast<double>(chunk.wire_bytes);
            }
        }
    }
}

// Time of the slowest rank to gather the first group that it gathers: nothing can be pulled of it before.
double first_gather(const ClusterSpec& spec, const Cluster& cluster, const Plan& gather) {
    double most = 0;
    for (std::size_t rank = 0; rank < gather.routes.size(); ++rank) {
        const std::vector<Chunk>& chunks = gather.routes[rank].chunks;
        double seconds = 0;
        for (const Chunk& chunk : chunks) {
            if (chunk.group != chunks.front().group) {
                break;
            }
            const bool inside = cluster.trainer_node(chunk.owner) == cluster.trainer_node(static_cast<int>(rank));
            const double rate = (inside ? spec.nvlink_gbps : spec.nic_gbps) * kBytesPerGbit;
            seconds +=
                rate > 0 && chunk.owner != static_cast<int>(rank) ? static_cast<double>(chunk.wire_bytes) / rate : 0;
        }
        most = std::max(most, seconds);
    }
    return most;
}

Result<double> parse_rate(std::string_view key, std::string_view value) {
    double number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc() || stop != end || !std::isfinite(number) || number <= 0) {
        return invalid_argument(fmt::format("cluster: {}={} must be a number above 0", key, value));
    }
    return number;
}

}  // namespace

Result<ClusterSpec> ClusterSpec::parse(std::string_view text) {
    constexpr double kMostGpus = 1 << 20;
    ClusterSpec out;
    bool gpus_given = false;
    while (!text.empty()) {
        const std::size_t comma = text.find(',');
        const std::string_view part = text.substr(0, comma);
        text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
        const std::size_t equals = part.find('=');
        const std::string_view key = part.substr(0, equals);
        const std::string_view value = equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
        SLUICE_ASSIGN_OR_RETURN(const double number, parse_rate(key, value));
        if (key == "gpus_per_node") {
            if (number != std::floor(number) || number > kMostGpus) {
                return invalid_argument(fmt::format("cluster: gpus_per_node={} must be a whole number", value));
            }
            out.gpus_per_node = static_cast<int>(number);
            gpus_given = true;
        } else if (key == "nic_gbps") {
            out.nic_gbps = number;
        } else if (key == "nvlink_gbps") {
            out.nvlink_gbps = number;
        } else {
            return invalid_argument(
                fmt::format("cluster: key '{}' is not known; keys are gpus_per_node, nic_gbps, nvlink_gbps", key));
        }
    }
    if (!gpus_given || out.nic_gbps <= 0) {
        return invalid_argument("cluster: gpus_per_node and nic_gbps are needed, such as gpus_per_node=8,nic_gbps=400");
    }
    return out;
}

CostBound cost_bound(const ClusterSpec& spec, const Plan& plan, std::span<const Ownership> owners, int workers,
                     const GatherPlan* gather) {
    const Cluster cluster(spec, static_cast<int>(owners.size()), workers);
    // Groups that travel at the same time: each stage has one being pulled and one ready. Within such a window nodes
    // overlap freely; windows follow each other. A group order that leaves stages idle shows here.
    std::set<int> stages;
    for (const Ownership& owner : owners) {
        stages.insert(owner.stage);
    }
    const std::size_t window = 2 * std::max<std::size_t>(1, stages.size());
    std::vector<std::size_t> slot_of_group(plan.group_order.size(), 0);
    for (std::size_t i = 0; i < plan.group_order.size(); ++i) {
        slot_of_group[static_cast<std::size_t>(plan.group_order[i])] = i / window;
    }
    std::vector<NodeTraffic> traffic(plan.group_order.size() / window + 1, NodeTraffic(cluster.nodes()));
    add_pulls(cluster, plan, traffic, slot_of_group);
    if (gather != nullptr) {
        add_gathers(cluster, gather->plan, traffic, slot_of_group);
    }

    CostBound out;
    NodeTraffic total(cluster.nodes());
    for (const NodeTraffic& t : traffic) {
        for (std::size_t n = 0; n < cluster.nodes(); ++n) {
            total.in[n] += t.in[n];
            total.out[n] += t.out[n];
        }
        out.predicted_s += std::max(slowest(cluster, t.in), slowest(cluster, t.out));
    }
    std::size_t in_node = 0;
    std::size_t out_node = 0;
    out.ingress_s = slowest(cluster, total.in, &in_node);
    out.egress_s = slowest(cluster, total.out, &out_node);
    out.wire_s = std::max(out.ingress_s, out.egress_s);
    out.worst_link =
        out.ingress_s >= out.egress_s ? cluster.describe(in_node, "ingress") : cluster.describe(out_node, "egress");

    std::int64_t last_chunk = 0;
    for (const Route& route : plan.routes) {
        last_chunk = std::max(last_chunk, route.chunks.empty() ? 0 : route.chunks.back().wire_bytes);
    }
    out.predicted_s += static_cast<double>(last_chunk) / (spec.nic_gbps * kBytesPerGbit);
    out.predicted_s += gather != nullptr ? first_gather(spec, cluster, gather->plan) : 0;
    return out;
}

}  // namespace sluice
