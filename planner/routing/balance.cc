#include "planner/routing/balance.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace sluice {
namespace {

// Rounds over all sets end when no owner's load moved by more than this share of the mean.
constexpr double kSettled = 1e-5;
constexpr int kMostRounds = 2000;

}  // namespace

Balancer::Balancer(const OwnerSets& sets, const std::vector<double>& bytes_of_set, std::vector<double> loads)
    : sets_(sets), share_(bytes_of_set.size()), planned_(std::move(loads)), owed_(planned_.size(), 0.0) {
    std::vector<OwnerSetId> open;
    double total = 0;
    for (std::size_t s = 0; s < bytes_of_set.size(); ++s) {
        const std::vector<int>& ranks = sets[static_cast<OwnerSetId>(s)];
        if (ranks.empty()) {
            continue;
        }
        share_[s].assign(ranks.size(), 1.0 / static_cast<double>(ranks.size()));
        for (const int rank : ranks) {
            planned_[static_cast<std::size_t>(rank)] += bytes_of_set[s] / static_cast<double>(ranks.size());
        }
        total += bytes_of_set[s];
        if (ranks.size() > 1 && bytes_of_set[s] > 0) {
            open.push_back(static_cast<OwnerSetId>(s));
        }
    }
    // Minimises the sum of squared loads set by set (each step fills the emptiest owners of one set to one level); the
    // minimum of that convex function over all assignments also has the least busiest owner.
    const double settled = kSettled * total / static_cast<double>(std::max<std::size_t>(1, planned_.size()));
    std::vector<double> others;
    std::vector<double> sorted;
    for (int round = 0; round < kMostRounds; ++round) {
        double moved = 0;
        for (const OwnerSetId s : open) {
            const std::vector<int>& ranks = sets[s];
            std::vector<double>& share = share_[static_cast<std::size_t>(s)];
            const double bytes = bytes_of_set[static_cast<std::size_t>(s)];
            others.clear();
            for (std::size_t i = 0; i < ranks.size(); ++i) {
                others.push_back(planned_[static_cast<std::size_t>(ranks[i])] - share[i] * bytes);
            }
            sorted = others;
            std::sort(sorted.begin(), sorted.end());
            double level = 0;
            double sum = 0;
            for (std::size_t n = 1; n <= sorted.size(); ++n) {
                sum += sorted[n - 1];
                level = (bytes + sum) / static_cast<double>(n);
                if (n == sorted.size() || level <= sorted[n]) {
                    break;
                }
            }
            for (std::size_t i = 0; i < ranks.size(); ++i) {
                const double now = std::max(0.0, level - others[i]);
                moved = std::max(moved, std::abs(now - share[i] * bytes));
                share[i] = now / bytes;
                planned_[static_cast<std::size_t>(ranks[i])] = others[i] + now;
            }
        }
        if (moved <= settled) {
            break;
        }
    }
}

void Balancer::announce(OwnerSetId set, double bytes) {
    const std::vector<int>& ranks = sets_[set];
    const std::vector<double>& share = share_[static_cast<std::size_t>(set)];
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        owed_[static_cast<std::size_t>(ranks[i])] += share[i] * bytes;
    }
}

Balancer::Pick Balancer::pick(OwnerSetId set) const {
    Pick best{-1, 0};
    for (const int rank : sets_[set]) {
        const double owed = owed_[static_cast<std::size_t>(rank)];
        if (best.owner < 0 || owed > best.owed) {
            best = {rank, owed};
        }
    }
    return best;
}

double Balancer::busiest() const { return planned_.empty() ? 0 : *std::max_element(planned_.begin(), planned_.end()); }

}  // namespace sluice
