#include "runtime/exchange/coordination.h"

#include "tests/exchange/fake_ranks.h"
#include "tests/support/hang.h"
#include "tests/support/log_guard.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using Verdict = Coordination::Verdict;

std::future<Verdict> agree(FakeRanks& ranks, int rank, Status mine = ok_status(),
                           std::chrono::milliseconds limit = 20s) {
    return std::async(std::launch::async, [&ranks, rank, mine = std::move(mine), limit] {
        return ranks.at(rank).coordination->agree("round", mine, Deadline::after(limit));
    });
}

bool pending(std::future<Verdict>& verdict) { return verdict.wait_for(50ms) == std::future_status::timeout; }

void expect_round_is_good(FakeRanks& ranks, const std::vector<int>& who) {
    std::vector<std::future<Verdict>> verdicts;
    for (const int rank : who) {
        verdicts.push_back(agree(ranks, rank));
    }
    for (auto& verdict : verdicts) {
        const Verdict got = verdict.get();
        EXPECT_TRUE(got.status.ok()) << got.status.message();
    }
}

TEST(CoordinationTest, VerdictComesWhenAllHaveReported) {
    FakeRanks ranks(4);
    for (int last = 0; last < 4; ++last) {
        std::vector<std::future<Verdict>> verdicts;
        for (int rank = 0; rank < 4; ++rank) {
            if (rank != last) {
                verdicts.push_back(agree(ranks, rank));
            }
        }
        for (auto& verdict : verdicts) {
            EXPECT_TRUE(pending(verdict)) << "rank " << last << " has not reported";
        }
        verdicts.push_back(agree(ranks, last));
        for (auto& verdict : verdicts) {
            EXPECT_TRUE(verdict.get().status.ok());
        }
    }
    for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(ranks.at(rank).aborts, 0);
    }
}

TEST(CoordinationTest, OneRankAloneAgreesWithItself) {
    FakeRanks ranks(1);
    expect_round_is_good(ranks, {0});
    const Verdict bad = agree(ranks, 0, internal_error("alone")).get();
    EXPECT_EQ(bad.status.message(), "alone");
    expect_round_is_good(ranks, {0});
}

// Whoever fails first, and whatever follows from it elsewhere, all are told the one cause, and all are told to stop.
TEST(CoordinationTest, TheFirstCauseWinsOnEveryRank) {
    FakeRanks ranks(4);
    for (int culprit = 0; culprit < 4; ++culprit) {
        std::vector<std::future<Verdict>> verdicts;
        verdicts.push_back(agree(ranks, culprit, Status(StatusCode::kMismatch, "chunk 7 is wrong", 2)));
        for (int rank = 0; rank < 4; ++rank) {
            while (ranks.at(rank).aborts != culprit + 1) {
                std::this_thread::sleep_for(1ms);
            }
        }
        for (int rank = 0; rank < 4; ++rank) {
            if (rank != culprit) {
                verdicts.push_back(
                    agree(ranks, rank,
                          rank % 2 == 0 ? Status(StatusCode::kAborted, "stopped") : internal_error("later trouble")));
            }
        }
        for (auto& verdict : verdicts) {
            const Verdict got = verdict.get();
            EXPECT_EQ(got.status.code(), StatusCode::kMismatch);
            EXPECT_EQ(got.status.message(), "chunk 7 is wrong");
            EXPECT_EQ(got.status.peer(), 2);
            EXPECT_EQ(got.failed_rank, culprit);
        }
        for (int rank = 0; rank < 4; ++rank) {
            EXPECT_EQ(ranks.at(rank).aborts, culprit + 1) << "once a round, rank " << rank;
        }
    }
    expect_round_is_good(ranks, {0, 1, 2, 3});
}

TEST(CoordinationTest, ACauseWinsOverAnAbortThatWasReportedBefore) {
    FakeRanks ranks(3);
    auto aborted = agree(ranks, 2, Status(StatusCode::kAborted, "stopped"));
    ranks.settle();
    auto cause = agree(ranks, 1, internal_error("the cause"));
    ranks.settle();
    auto fine = agree(ranks, 0);
    for (auto* verdict : {&aborted, &cause, &fine}) {
        const Verdict got = verdict->get();
        EXPECT_EQ(got.status.message(), "the cause");
        EXPECT_EQ(got.failed_rank, 1);
    }
}

TEST(CoordinationTest, LongErrorTextsAreCutAndNotRefused) {
    FakeRanks ranks(2);
    auto bad = agree(ranks, 1, internal_error(std::string(100'000, 'x')));
    auto good = agree(ranks, 0);
    EXPECT_EQ(good.get().status.code(), StatusCode::kInternal);
    EXPECT_EQ(bad.get().status.code(), StatusCode::kInternal);
    expect_round_is_good(ranks, {0, 1});
}

// As on a node whose network fails as a whole: nobody waits for a coordinator that cannot be reached, and what failed first is named.
TEST(CoordinationTest, RanksThatCannotReachEachOtherConcludeAlone) {
    FakeRanks ranks(3, {}, /*linked=*/false, /*unreachable=*/{1, 2});
    for (const int rank : {1, 2}) {
        ranks.at(rank).loop.run_and_wait([&] { EXPECT_TRUE(ranks.at(rank).links->connect(0).ok()); });
    }
    std::vector<std::future<Verdict>> verdicts;
    verdicts.push_back(agree(ranks, 1));
    verdicts.push_back(agree(ranks, 2));
    for (auto& verdict : verdicts) {
        EXPECT_TRUE(pending(verdict));
    }
    ranks.fabric().kill(ranks.at(0).id);
    for (auto& verdict : verdicts) {
        ASSERT_EQ(verdict.wait_for(5s), std::future_status::ready);
        const Verdict got = verdict.get();
        EXPECT_EQ(got.status.code(), StatusCode::kPeerLost);
        EXPECT_EQ(got.status.peer(), 0) << got.status.message();
        EXPECT_EQ(got.failed_rank, 0);
    }
}

// Cut off with a rank that takes longer to notice: its silence is no cause, the loss of the coordinator is.
TEST(CoordinationTest, TheLossOfTheCoordinatorStaysTheCauseWhenTheNextOneIsSilentToo) {
    FakeRanks ranks(3);
    auto verdict = agree(ranks, 2);
    EXPECT_TRUE(pending(verdict));
    for (const int silent : {0, 1}) {
        ranks.at(2).loop.run_and_wait(
            [&] { ranks.at(2).links->declare_lost(silent, peer_lost("no sign of life", silent)); });
    }
    ASSERT_EQ(verdict.wait_for(5s), std::future_status::ready);
    const Verdict got = verdict.get();
    EXPECT_EQ(got.status.code(), StatusCode::kPeerLost);
    EXPECT_EQ(got.status.peer(), 0) << got.status.message();
    EXPECT_EQ(got.failed_rank, 0);
}

// The reports had gone to the coordinator that dies; the next one gets them again.
TEST(CoordinationTest, TheNextRankTakesOverWhenTheCoordinatorDies) {
    FakeRanks ranks(4);
    for (int dead = 0; dead < 3; ++dead) {
        std::vector<std::future<Verdict>> verdicts;
        for (int rank = dead + 1; rank < 4; ++rank) {
            verdicts.push_back(agree(ranks, rank));
        }
        for (auto& verdict : verdicts) {
            EXPECT_TRUE(pending(verdict)) << "rank " << dead << " has not reported";
        }
        ranks.fabric().kill(ranks.at(dead).id);
        for (auto& verdict : verdicts) {
            const Verdict got = verdict.get();
            EXPECT_EQ(got.status.code(), StatusCode::kPeerLost);
            EXPECT_EQ(got.status.peer(), dead) << got.status.message();
            EXPECT_EQ(got.failed_rank, dead);
        }
        std::vector<int> alive;
        for (int rank = dead + 1; rank < 4; ++rank) {
            alive.push_back(rank);
        }
        expect_round_is_good(ranks, alive);
    }
}

TEST(CoordinationTest, TheNextRankTakesOverBeforeItHasReportedItself) {
    FakeRanks ranks(3);
    auto early = agree(ranks, 2);
    EXPECT_TRUE(pending(early));
    ranks.fabric().kill(ranks.at(0).id);
    EXPECT_TRUE(pending(early)) << "rank 1 is alive and has not reported";
    auto late = agree(ranks, 1);
    EXPECT_EQ(early.get().status.peer(), 0);
    EXPECT_EQ(late.get().status.peer(), 0);
    expect_round_is_good(ranks, {1, 2});
}

// The coordinator's verdict has reached only one rank when it dies: the others get the same one.
TEST(CoordinationTest, AVerdictThatOneRankKnowsIsEverybodys) {
    for (const int left_out : {1, 2, 3}) {
        SCOPED_TRACE(left_out);
        FakeRanks ranks(4);
        ranks.settle();
        ranks.fabric().drop_messages(ranks.at(0).id, ranks.at(left_out).id, 1);
        std::vector<std::future<Verdict>> verdicts;
        for (int rank = 0; rank < 4; ++rank) {
            verdicts.push_back(agree(ranks, rank));
        }
        for (int rank = 0; rank < 4; ++rank) {
            if (rank != left_out) {
                EXPECT_TRUE(verdicts[static_cast<std::size_t>(rank)].get().status.ok());
            }
        }
        EXPECT_TRUE(pending(verdicts[static_cast<std::size_t>(left_out)]));
        ranks.fabric().kill(ranks.at(0).id);
        const Verdict got = verdicts[static_cast<std::size_t>(left_out)].get();
        EXPECT_TRUE(got.status.ok()) << got.status.message();
    }
}

// A failure is reported to the next coordinator before that one knows that it is the coordinator: all are told to stop all the same.
TEST(CoordinationTest, ACauseThatCameBeforeTheTakeoverStopsEverybody) {
    FakeRanks ranks(4);
    const auto lose = [&](int rank) {
        ranks.at(rank).loop.run_and_wait(
            [&] { ranks.at(rank).links->declare_lost(0, peer_lost("its link failed", 0)); });
        ranks.settle();
    };
    lose(3);
    auto three = agree(ranks, 3, Status(StatusCode::kPeerLost, "a read from rank 0 failed", 0));
    ranks.settle();
    EXPECT_TRUE(pending(three));
    lose(1);
    EXPECT_EQ(ranks.at(1).aborts, 1);
    EXPECT_EQ(ranks.at(2).aborts, 1) << "who would wait for groups that never come";
    lose(2);
    auto one = agree(ranks, 1, Status(StatusCode::kAborted, "stopped"));
    auto two = agree(ranks, 2, Status(StatusCode::kAborted, "stopped"));
    for (auto* verdict : {&one, &two, &three}) {
        const Verdict got = verdict->get();
        EXPECT_EQ(got.status.code(), StatusCode::kPeerLost) << got.status.message();
        EXPECT_EQ(got.status.peer(), 0);
    }
}

// The new coordinator aborts a round that this rank has not come to: before that it tells the last verdict of the former one.
TEST(CoordinationTest, ANewCoordinatorTellsTheLastVerdictFirst) {
    FakeRanks ranks(3);
    ranks.settle();
    ranks.fabric().drop_messages(ranks.at(0).id, ranks.at(2).id, 1);
    auto zero = agree(ranks, 0);
    auto one = agree(ranks, 1);
    auto two = agree(ranks, 2);
    EXPECT_TRUE(zero.get().status.ok());
    EXPECT_TRUE(one.get().status.ok());
    const auto lose = [&](int rank) {
        ranks.at(rank).loop.run_and_wait(
            [&] { ranks.at(rank).links->declare_lost(0, peer_lost("its link failed", 0)); });
        ranks.settle();
    };
    lose(1);
    EXPECT_EQ(ranks.at(1).aborts, 1);
    EXPECT_TRUE(two.get().status.ok());
    EXPECT_EQ(ranks.at(2).aborts, 1) << "of the round after";
    lose(2);
    EXPECT_EQ(ranks.at(2).aborts, 1);
}

// The coordinator has told only rank 2 when it is lost. Rank 3 reports to rank 1, which hears of the verdict before it knows that it leads.
TEST(CoordinationTest, AVerdictThatCameBeforeTheTakeoverIsToldAfterIt) {
    FakeRanks ranks(4);
    ranks.settle();
    for (const int left_out : {1, 3}) {
        ranks.fabric().drop_messages(ranks.at(0).id, ranks.at(left_out).id, 1);
    }
    std::vector<std::future<Verdict>> verdicts;
    for (int rank = 0; rank < 4; ++rank) {
        verdicts.push_back(agree(ranks, rank));
    }
    EXPECT_TRUE(verdicts[0].get().status.ok());
    EXPECT_TRUE(verdicts[2].get().status.ok());
    for (const int rank : {3, 2, 1}) {
        ranks.at(rank).loop.run_and_wait(
            [&] { ranks.at(rank).links->declare_lost(0, peer_lost("its link failed", 0)); });
        ranks.settle();
    }
    for (const int rank : {1, 3}) {
        auto& verdict = verdicts[static_cast<std::size_t>(rank)];
        ASSERT_EQ(verdict.wait_for(5s), std::future_status::ready) << "rank " << rank;
        EXPECT_TRUE(verdict.get().status.ok()) << "rank " << rank;
    }
}

// Rank 0 concludes without rank 2, whose link it has lost, and dies; rank 1 tells rank 2 of the verdict before that has reported.
TEST(CoordinationTest, AReportForARoundThatIsDecidedDoesNotCountForTheNext) {
    FakeRanks ranks(3);
    ranks.settle();
    auto one = agree(ranks, 1, internal_error("the cause"));
    const auto wait_for_aborts = [&](int count) {
        while (ranks.at(2).aborts != count) {
            std::this_thread::sleep_for(1ms);
        }
    };
    wait_for_aborts(1);
    ranks.at(0).loop.run_and_wait([&] { ranks.at(0).links->declare_lost(2, peer_lost("its link failed", 2)); });
    EXPECT_EQ(agree(ranks, 0).get().status.message(), "the cause");
    EXPECT_EQ(one.get().status.message(), "the cause");
    ranks.fabric().kill(ranks.at(0).id);
    wait_for_aborts(2);  // of the round after: the verdict has come before
    const Status stopped(StatusCode::kAborted, "stopped");
    const Verdict late = agree(ranks, 2, stopped).get();
    EXPECT_EQ(late.status.message(), "the cause");
    EXPECT_EQ(late.failed_rank, 1);
    one = agree(ranks, 1, stopped);
    EXPECT_TRUE(pending(one)) << "rank 2 has not reported";
    auto two = agree(ranks, 2, stopped);
    for (auto* verdict : {&one, &two}) {
        EXPECT_EQ(verdict->get().status.peer(), 0);
    }
    expect_round_is_good(ranks, {1, 2});
}

TEST(CoordinationTest, TheDeathOfAnotherRankFailsTheRoundAndNotTheNext) {
    FakeRanks ranks(3);
    auto zero = agree(ranks, 0);
    auto one = agree(ranks, 1);
    ranks.fabric().kill(ranks.at(2).id);
    for (auto* verdict : {&zero, &one}) {
        const Verdict got = verdict->get();
        EXPECT_EQ(got.status.code(), StatusCode::kPeerLost);
        EXPECT_EQ(got.status.peer(), 2);
    }
    expect_round_is_good(ranks, {0, 1});
}

TEST(CoordinationTest, ARankThatIsAliveAndSilentIsNamedByTheDeadline) {
    FakeRanks ranks(3);
    auto zero = agree(ranks, 0, ok_status(), 150ms);
    auto one = agree(ranks, 1, ok_status(), 250ms);
    for (auto* verdict : {&zero, &one}) {
        const Verdict got = verdict->get();
        EXPECT_EQ(got.status.code(), StatusCode::kDeadlineExceeded);
        EXPECT_NE(got.status.message().find("rank 2"), std::string::npos) << got.status.message();
    }
}

// Two ranks have given a round up and tried the next one while the third had still to report: from then on all count the same rounds again.
TEST(CoordinationTest, RanksThatGaveARoundUpCountOnWithTheOthers) {
    FakeRanks ranks(3);
    auto zero = agree(ranks, 0, ok_status(), 150ms);
    auto one = agree(ranks, 1, ok_status(), 250ms);
    EXPECT_EQ(zero.get().status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(one.get().status.code(), StatusCode::kDeadlineExceeded);
    zero = agree(ranks, 0);
    one = agree(ranks, 1);
    ranks.settle();
    EXPECT_EQ(agree(ranks, 2).get().status.code(), StatusCode::kDeadlineExceeded) << "the round that was given up";
    auto two = agree(ranks, 2);
    for (auto* verdict : {&zero, &one, &two}) {
        EXPECT_TRUE(verdict->get().status.ok());
    }
    expect_round_is_good(ranks, {0, 1, 2});
}

// As before, but the two give up several rounds.
TEST(CoordinationTest, ReportsOfSeveralRoundsWaitForTheirTurn) {
    FakeRanks ranks(3);
    for (int round = 0; round < 3; ++round) {
        auto zero = agree(ranks, 0, ok_status(), 100ms);
        auto one = agree(ranks, 1, ok_status(), 100ms);
        EXPECT_FALSE(zero.get().status.ok());
        EXPECT_FALSE(one.get().status.ok());
    }
    for (int round = 0; round < 3; ++round) {
        EXPECT_FALSE(agree(ranks, 2).get().status.ok()) << round;
    }
    expect_round_is_good(ranks, {0, 1, 2});
}

TEST(CoordinationTest, ReportsOfARoundThatIsNotOpenDoNotFillTheLog) {
    FakeRanks ranks(2);
    ranks.settle();
    {
        const ExpectedLog stray("rank 1 reports round 7 while round 1 is open");
        ranks.at(1).loop.run_and_wait([&] {
            Message report;
            report.kind = MessageKind::kReport;
            report.version = 7;
            for (int i = 0; i < 100; ++i) {
                ranks.at(1).links->send(0, report);
            }
        });
        ranks.settle();
        EXPECT_LE(stray.seen(), 16);
    }
    expect_round_is_good(ranks, {0, 1});
}

class CoordinationHeartbeatTest : public testing::TestWithParam<int> {};

TEST_P(CoordinationHeartbeatTest, ARankThatHangsIsFound) {
    const int hung = GetParam();
    FakeRanks ranks(3, {100ms, 600ms});
    for (int rank = 0; rank < 3; ++rank) {
        ranks.at(rank).loop.run_and_wait([&] { ranks.at(rank).coordination->start_heartbeats(); });
    }
    expect_round_is_good(ranks, {0, 1, 2});
    const ExpectedLog stale("unknown or lost",
                            ExpectedLog::Presence::kAllowed);  // what waited for the hung rank, or came of it
    Hang hang;
    ranks.at(hung).loop.post(hang);
    hang.hangs.acquire();
    std::vector<std::future<Verdict>> verdicts;
    for (int rank = 0; rank < 3; ++rank) {
        if (rank != hung) {
            verdicts.push_back(agree(ranks, rank));
        }
    }
    for (auto& verdict : verdicts) {
        const Verdict got = verdict.get();
        EXPECT_EQ(got.status.code(), StatusCode::kPeerLost);
        EXPECT_EQ(got.status.peer(), hung) << got.status.message();
        EXPECT_NE(got.status.message().find("no sign of life"), std::string::npos) << got.status.message();
    }
    hang.go_on.release();
    ranks.settle();
}

INSTANTIATE_TEST_SUITE_P(Ranks, CoordinationHeartbeatTest, testing::Values(0, 1, 2));

// Rank 2 has lost 0 and 1 and leads; rank 3 has heard of 0 only, and follows 1, which lives.
TEST(CoordinationHeartbeatTest, ARankThatFollowsAnotherCoordinatorIsNotTakenForDead) {
    FakeRanks ranks(4, {20ms, 200ms});
    for (int rank = 0; rank < 4; ++rank) {
        ranks.at(rank).loop.run_and_wait([&] { ranks.at(rank).coordination->start_heartbeats(); });
    }
    expect_round_is_good(ranks, {0, 1, 2, 3});
    const ExpectedLog stale("unknown or lost", ExpectedLog::Presence::kAllowed);
    ranks.at(2).loop.run_and_wait([&] {
        for (const int other : {0, 1}) {
            ranks.at(2).links->declare_lost(other, peer_lost("its link failed", other));
        }
    });
    std::this_thread::sleep_for(1s);
    ranks.at(2).loop.run_and_wait([&] { EXPECT_FALSE(ranks.at(2).links->lost(3)); });
    ranks.at(3).loop.run_and_wait([&] {
        EXPECT_FALSE(ranks.at(3).links->lost(2));
        EXPECT_EQ(ranks.at(3).coordination->coordinator(), 1);
    });
}

// As on a node that fails: the ranks that would follow the coordinator are gone with it. They have been linked to the others, or not.
class CoordinationNodeTest : public testing::TestWithParam<bool> {};

TEST_P(CoordinationNodeTest, RanksThatDieTogetherAreFoundTogether) {
    constexpr auto kDeadAfter = 600ms;
    FakeRanks ranks(6, {100ms, kDeadAfter}, /*linked=*/GetParam());
    for (int rank = 0; rank < 6; ++rank) {
        ranks.at(rank).loop.run_and_wait([&] {
            EXPECT_TRUE(ranks.at(rank).links->connect(0).ok());
            for (int other = 1; rank == 0 && other < 6; ++other) {
                EXPECT_TRUE(ranks.at(rank).links->connect(other).ok());
            }
            ranks.at(rank).coordination->start_heartbeats();
        });
    }
    expect_round_is_good(ranks, {0, 1, 2, 3, 4, 5});
    const ExpectedLog stale("unknown or lost", ExpectedLog::Presence::kAllowed);
    std::array<Hang, 4> hangs;
    for (int rank = 0; rank < 4; ++rank) {
        ranks.at(rank).loop.post(hangs[static_cast<std::size_t>(rank)]);
        hangs[static_cast<std::size_t>(rank)].hangs.acquire();
    }
    const auto hung = std::chrono::steady_clock::now();
    std::vector<std::future<Verdict>> verdicts;
    verdicts.push_back(agree(ranks, 4));
    verdicts.push_back(agree(ranks, 5));
    for (auto& verdict : verdicts) {
        const Verdict got = verdict.get();
        EXPECT_EQ(got.status.code(), StatusCode::kPeerLost);
        EXPECT_EQ(got.status.peer(), 0) << got.status.message();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - hung, 3 * kDeadAfter);
    for (Hang& hang : hangs) {
        hang.go_on.release();
    }
    ranks.settle();
}

INSTANTIATE_TEST_SUITE_P(Linked, CoordinationNodeTest, testing::Bool());

// Once the end is agreed on everybody closes its links: that is no loss, and a link to the next rank would only have to be closed as well.
TEST(CoordinationEndTest, NobodyFollowsACoordinatorThatLeavesAfterTheLastRound) {
    for (const bool last : {false, true}) {
        FakeRanks ranks(4, {100ms, 10s}, /*linked=*/false);
        for (int rank = 0; rank < 4; ++rank) {
            ranks.at(rank).loop.run_and_wait([&] {
                for (int other = rank == 0 ? 1 : 0; other < (rank == 0 ? 4 : 1); ++other) {
                    EXPECT_TRUE(ranks.at(rank).links->connect(other).ok());
                }
                if (last) {
                    ranks.at(rank).coordination->expect_last_round();
                }
            });
        }
        expect_round_is_good(ranks, {0, 1, 2, 3});
        const ExpectedLog stale("unknown or lost", ExpectedLog::Presence::kAllowed);
        ranks.at(3).loop.run_and_wait([&] {
            ranks.at(3).links->declare_lost(0, Status(StatusCode::kPeerLost, "gone", 0));
            EXPECT_EQ(ranks.at(3).links->connected(1), !last);
            EXPECT_EQ(ranks.at(3).links->connected(2), !last);
        });
        ranks.settle();
    }
}

TEST(CoordinationHeartbeatTest, NobodyIsLostWhileAllLive) {
    FakeRanks ranks(3, {20ms, 2s});
    for (int rank = 0; rank < 3; ++rank) {
        ranks.at(rank).loop.run_and_wait([&] { ranks.at(rank).coordination->start_heartbeats(); });
    }
    for (int round = 0; round < 20; ++round) {
        std::this_thread::sleep_for(10ms);
        expect_round_is_good(ranks, {0, 1, 2});
    }
    for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(ranks.at(rank).losses, 0);
    }
}

}  // namespace
}  // namespace sluice::test
