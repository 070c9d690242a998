#include "runtime/services/copy_threads.h"

#include "runtime/services/latch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <pthread.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice {
namespace {

class Job final : public CopyJob {
public:
    std::function<void()> on_run = [] {};
    std::function<void(Job&)> on_finished = [](Job&) {};
    void run() override { on_run(); }
    void finished() override { on_finished(*this); }
};

TEST(CopyThreadsTest, RunsInOrderOnItsThreadAndFinishesOnTheLoop) {
    EventLoop loop("loop");
    CopyThreads copy_threads(loop, "copy-of-a-long-name", 1);
    std::vector<int> ran;
    std::vector<int> finished;
    std::promise<void> done;
    std::vector<std::unique_ptr<Job>> jobs;
    for (int i = 0; i < 100; ++i) {
        jobs.push_back(std::make_unique<Job>());
        jobs.back()->on_run = [&, i] {
            char name[16] = {};
            pthread_getname_np(pthread_self(), name, sizeof(name));
            EXPECT_STREQ(name, "copy-of-a-long-");
            EXPECT_FALSE(loop.on_loop_thread());
            ran.push_back(i);
        };
        jobs.back()->on_finished = [&, i](Job& job) {
            EXPECT_TRUE(loop.on_loop_thread());
            EXPECT_TRUE(job.was_run());
            finished.push_back(i);
            if (i == 99) {
                done.set_value();
            }
        };
    }
    for (const auto& job : jobs) {
        copy_threads.enqueue(*job);
    }
    done.get_future().wait();
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
        EXPECT_EQ(finished[static_cast<std::size_t>(i)], i);
    }
    EXPECT_EQ(ran.size(), 100u);
    EXPECT_EQ(finished.size(), 100u);
}

TEST(CopyThreadsTest, TheLoopRunsSmallJobsAtOnceAndNotTooManyInARow) {
    EventLoop loop("loop");
    CopyThreads copy_threads(loop, "copy", 1, 100);
    std::promise<void> done;
    std::vector<std::unique_ptr<Job>> jobs;
    std::vector<char> on_loop(6);  // Not of bool, whose elements share a byte: two threads write.
    int finished = 0;
    for (std::size_t i = 0; i < on_loop.size(); ++i) {
        jobs.push_back(std::make_unique<Job>());
        jobs.back()->on_run = [&, i] { on_loop[i] = loop.on_loop_thread() ? 1 : 0; };
        jobs.back()->on_finished = [&](Job& job) {
            EXPECT_TRUE(job.was_run());
            if (++finished == 6) {
                done.set_value();
            }
        };
    }
    loop.run_and_wait([&] {
        copy_threads.enqueue(*jobs[0], 101);
        for (std::size_t i = 1; i < jobs.size(); ++i) {
            copy_threads.enqueue(*jobs[i], 100);
        }
        EXPECT_EQ(finished, 0) << "finished() comes later";
    });
    done.get_future().wait();
    loop.run_and_wait([] {});
    EXPECT_EQ(on_loop, (std::vector<char>{0, 1, 1, 1, 1, 0}));
    EXPECT_EQ(jobs[1]->ran_on(), CopyJob::kLoop);
    EXPECT_EQ(jobs[5]->ran_on(), 0);
    // The loop has gone round: it takes small ones again.
    std::promise<void> again;
    jobs[5]->on_finished = [&](Job&) { again.set_value(); };
    loop.run_and_wait([&] { copy_threads.enqueue(*jobs[5], 100); });
    again.get_future().wait();
    EXPECT_EQ(jobs[5]->ran_on(), CopyJob::kLoop);
}

TEST(CopyThreadsTest, WithoutALimitNothingIsRunAtOnce) {
    EventLoop loop("loop");
    CopyThreads copy_threads(loop, "copy", 1);
    std::promise<void> done;
    Job job;
    job.on_run = [&] { EXPECT_FALSE(loop.on_loop_thread()); };
    job.on_finished = [&](Job&) { done.set_value(); };
    loop.run_and_wait([&] { copy_threads.enqueue(job, 0); });
    done.get_future().wait();
    EXPECT_EQ(job.ran_on(), 0);
}

TEST(CopyThreadsTest, AJobMayBeEnqueuedAgainOrDieWhenItHasFinished) {
    EventLoop loop("loop");
    CopyThreads copy_threads(loop, "copy", 1);
    std::promise<void> done;
    auto job = std::make_unique<Job>();
    int runs = 0;
    job->on_run = [&] { ++runs; };
    job->on_finished = [&](Job&) {
        if (runs < 50) {
            copy_threads.enqueue(*job);
        } else {
            // The callback that runs belongs to the job: nothing may follow its end.
            const std::unique_ptr<Job> dying = std::move(job);
            done.set_value();
        }
    };
    copy_threads.enqueue(*job);
    done.get_future().wait();
    EXPECT_EQ(runs, 50);
    EXPECT_EQ(job, nullptr);
}

TEST(CopyThreadsTest, StoppingRunsNoMoreAndFinishesAllInOrder) {
    EventLoop loop("loop");
    std::vector<int> ran;
    std::vector<std::pair<int, bool>> finished;
    std::vector<std::unique_ptr<Job>> jobs;
    std::promise<void> started;
    std::promise<void> go_on;
    {
        CopyThreads copy_threads(loop, "copy", 1);
        for (int i = 0; i < 10; ++i) {
            jobs.push_back(std::make_unique<Job>());
            jobs.back()->on_run = [&, i] {
                ran.push_back(i);
                started.set_value();
                go_on.get_future().wait();
            };
            jobs.back()->on_finished = [&, i](Job& job) { finished.emplace_back(i, job.was_run()); };
            copy_threads.enqueue(*jobs.back());
        }
        started.get_future().wait();
        // The first job ends only once the destructor is waiting for it, or is about to.
        std::thread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            go_on.set_value();
        }).detach();
    }
    loop.run_and_wait([] {});
    EXPECT_EQ(ran, std::vector<int>{0});
    ASSERT_EQ(finished.size(), 10u);
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(finished[static_cast<std::size_t>(i)], std::make_pair(i, i == 0));
    }
}

TEST(CopyThreadsTest, ManyThreadsEnqueue) {
    EventLoop loop("loop");
    CopyThreads copy_threads(loop, "copy", 1);
    constexpr int kThreads = 4;
    constexpr int kJobs = 250;
    std::vector<Job> jobs(kThreads * kJobs);
    std::atomic<int> runs{0};
    int finished = 0;  // On the loop only.
    std::promise<void> done;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < kJobs; ++i) {
                Job& job = jobs[static_cast<std::size_t>(t * kJobs + i)];
                job.on_run = [&] { ++runs; };
                job.on_finished = [&](Job&) {
                    if (++finished == kThreads * kJobs) {
                        done.set_value();
                    }
                };
                copy_threads.enqueue(job);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    done.get_future().wait();
    EXPECT_EQ(runs.load(), kThreads * kJobs);
}

TEST(CopyThreadsTest, TwoThreadsRunTwoJobsAtOnce) {
    EventLoop loop("loop");
    CopyThreads copy_threads(loop, "copy", 2);
    Latch both_run(2);
    Latch both_ended(2);
    Job jobs[2];
    for (Job& job : jobs) {
        job.on_run = [&] {
            both_run.count_down();
            both_run.wait();
        };
        job.on_finished = [&](Job&) { both_ended.count_down(); };
        copy_threads.enqueue(job);
    }
    both_ended.wait();
}

}  // namespace
}  // namespace sluice
