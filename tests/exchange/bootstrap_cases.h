#pragma once

#include "runtime/exchange/bootstrap.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>

namespace sluice {

namespace bootstrap_cases_detail {

/// Blob of a rank in a round: of a length and content that both depend on them.
inline Bootstrap::Blob blob_of(int rank, int round, std::size_t scale) {
    Bootstrap::Blob blob((static_cast<std::size_t>(rank) * 37 + static_cast<std::size_t>(round) * 11) % 101 * scale);
    for (std::size_t i = 0; i < blob.size(); ++i) {
        blob[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rank) + static_cast<std::size_t>(round) * 3);
    }
    return blob;
}

inline void require(bool condition, const std::string& what) {
    if (!condition) {
        throw std::runtime_error("bootstrap cases: " + what);
    }
}

}  // namespace bootstrap_cases_detail

/// All collectives, called by every rank of `bootstrap`, with empty, small and large blobs and every root, with one rank late.
/// Throws at the first wrong result.
inline void bootstrap_cases(Bootstrap& bootstrap) {
    using namespace bootstrap_cases_detail;
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    const int size = bootstrap.size();
    const int rank = bootstrap.rank();
    for (const std::size_t scale : {std::size_t{1}, std::size_t{2000}}) {  // the second leaves every eager limit
        for (int round = 0; round < 6; ++round) {
            const int root = round % size;
            if (rank == (round + 1) % size) {
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
            }
            const auto gathered = bootstrap.gather(root, blob_of(rank, round, scale), deadline).value();
            require(gathered.size() == (rank == root ? static_cast<std::size_t>(size) : 0), "number of gathered blobs");
            for (std::size_t from = 0; from < gathered.size(); ++from) {
                require(gathered[from] == blob_of(static_cast<int>(from), round, scale),
                        "gathered blob of rank " + std::to_string(from));
            }
            std::vector<Bootstrap::Blob> blobs;
            for (int to = 0; rank == root && to < size; ++to) {
                blobs.push_back(blob_of(to, round + 1, scale));
            }
            require(bootstrap.scatter(root, blobs, deadline).value() == blob_of(rank, round + 1, scale),
                    "scattered blob");
            const auto all = bootstrap.all_gather(blob_of(rank, round + 2, scale), deadline).value();
            require(all.size() == static_cast<std::size_t>(size), "number of all-gathered blobs");
            for (int from = 0; from < size; ++from) {
                require(all[static_cast<std::size_t>(from)] == blob_of(from, round + 2, scale),
                        "all-gathered blob of rank " + std::to_string(from));
            }
            require(bootstrap.barrier(deadline).ok(), "barrier");
        }
    }
}

}  // namespace sluice
