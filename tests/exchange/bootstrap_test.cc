// One body for both bootstraps: threads of this process, and, when mpirun has started the program, the ranks of it.
#include "runtime/exchange/bootstrap.h"

#include "runtime/exchange/bootstrap_in_process.h"
#include "runtime/exchange/bootstrap_mpi.h"
#include "tests/exchange/bootstrap_cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

void on_all(std::vector<std::unique_ptr<Bootstrap>>& ranks, const std::function<void(Bootstrap&)>& body) {
    std::vector<std::jthread> threads;
    for (const auto& rank : ranks) {
        threads.emplace_back([&body, &rank] { body(*rank); });
    }
}

TEST(InProcessBootstrap, CollectivesOfAnySize) {
    for (const int size : {1, 2, 5}) {
        auto ranks = in_process_bootstraps(size);
        on_all(ranks, bootstrap_cases);
    }
}

TEST(InProcessBootstrap, MissingRanksAreNamedAtTheDeadline) {
    auto ranks = in_process_bootstraps(4);
    ranks.erase(ranks.begin() + 2);  // rank 2 never calls
    on_all(ranks, [](Bootstrap& rank) {
        const Status status = rank.barrier(Deadline::after(100ms));
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
        EXPECT_THAT(status.message(), HasSubstr("1 of 4 ranks before the deadline: 2"));
        EXPECT_FALSE(rank.barrier(Deadline::never()).ok()) << "a failed bootstrap must not wait again";
    });
}

TEST(InProcessBootstrap, TheFirstRankIsNamedWhenItIsMissing) {
    auto ranks = in_process_bootstraps(3);
    ranks.erase(ranks.begin());
    on_all(ranks, [](Bootstrap& rank) {
        const Status status = rank.all_gather({}, Deadline::after(50ms)).status();
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
        EXPECT_THAT(status.message(), HasSubstr("1 of 3 ranks before the deadline: 0"));
    });
}

TEST(InProcessBootstrap, RanksThatCallDifferentCollectivesAreNamed) {
    auto ranks = in_process_bootstraps(2);
    std::vector<Status> statuses(2);
    on_all(ranks, [&](Bootstrap& rank) {
        Status& status = statuses[static_cast<std::size_t>(rank.rank())];
        status = rank.rank() == 0 ? rank.gather(0, {}, Deadline::after(200ms)).status()
                                  : rank.all_gather({}, Deadline::after(200ms)).status();
    });
    EXPECT_EQ(statuses[0].code(), StatusCode::kInternal);
    EXPECT_THAT(statuses[0].message(), HasSubstr("rank 1"));
    EXPECT_FALSE(statuses[1].ok());
}

// Each part may be sent, what rank 0 makes of them may not: nobody waits for it.
TEST(InProcessBootstrap, WhatRankZeroMayNotSendEndsAllAtOnce) {
    constexpr std::size_t kMost = 100;
    for (const bool scatters : {false, true}) {
        // The first rank's part could be sent.
        const std::vector<Bootstrap::Blob> parts = {{}, Bootstrap::Blob(1), Bootstrap::Blob(kMost + 1)};
        auto ranks = in_process_bootstraps(3, kMost);
        std::vector<Status> statuses(3);
        const auto start = std::chrono::steady_clock::now();
        on_all(ranks, [&](Bootstrap& rank) {
            const Deadline deadline = Deadline::after(20s);
            statuses[static_cast<std::size_t>(rank.rank())] =
                scatters ? rank.scatter(0, parts, deadline).status()
                         : rank.all_gather(Bootstrap::Blob(kMost / 2), deadline).status();
        });
        EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
        for (const Status& status : statuses) {
            EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
            EXPECT_THAT(status.message(), HasSubstr(scatters ? "101 bytes" : "174 bytes"));
        }
    }
}

TEST(InProcessBootstrap, ScatterNeedsABlobForEachRank) {
    auto ranks = in_process_bootstraps(1);
    EXPECT_FALSE(ranks[0]->scatter(0, {}, Deadline::after(1s)).ok());
}

TEST(MpiBootstrap, OneRankWithoutMpirun) {
    const auto bootstrap = MpiBootstrap::create().value();
    ASSERT_EQ(bootstrap->size(), 1);
    bootstrap_cases(*bootstrap);
    bootstrap->finalize();
    EXPECT_THAT(MpiBootstrap::library_version(), HasSubstr("MPI"));
}

}  // namespace
}  // namespace sluice
