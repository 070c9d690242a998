#include "runtime/services/event_loop.h"

#include "tests/services/counted_new.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;
using Clock = EventLoop::Clock;

// How long a test waits for something that should come at once.
constexpr auto kPatience = 10s;

struct CallTask final : LoopTask {
    explicit CallTask(std::function<void()> task_call) : call(std::move(task_call)) {}
    void run() override { call(); }
    const std::function<void()> call;
};

// CPU time that the loop's thread has used so far.
std::chrono::nanoseconds loop_cpu(EventLoop& loop) {
    timespec used{};
    loop.run_and_wait([&] { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used); });
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

TEST(EventLoopTest, RunsTasksOfEachThreadInTheOrderOfPosting) {
    constexpr int kThreads = 4;
    constexpr int kTasks = 2000;
    struct Numbered final : LoopTask {
        void run() override { (*seen)[static_cast<std::size_t>(thread)].push_back(number); }
        std::vector<std::vector<int>>* seen = nullptr;
        int thread = 0;
        int number = 0;
    };
    std::vector<std::vector<int>> seen(kThreads);
    std::vector<Numbered> tasks(kThreads * kTasks);
    EventLoop loop("order");
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < kTasks; ++i) {
                Numbered& task = tasks[static_cast<std::size_t>(t * kTasks + i)];
                task.seen = &seen;
                task.thread = t;
                task.number = i;
                loop.post(task);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    loop.run_and_wait([] {});
    for (const std::vector<int>& numbers : seen) {
        ASSERT_EQ(numbers.size(), static_cast<std::size_t>(kTasks));
        for (int i = 0; i < kTasks; ++i) {
            EXPECT_EQ(numbers[static_cast<std::size_t>(i)], i);
        }
    }
}

TEST(EventLoopTest, ATaskMayPostItselfAgain) {
    EventLoop loop("again");
    std::promise<void> done;
    int left = 1000;
    std::unique_ptr<CallTask> task;
    task = std::make_unique<CallTask>([&] {
        if (--left > 0) {
            loop.post(*task);
        } else {
            done.set_value();
        }
    });
    loop.post(*task);
    EXPECT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
    EXPECT_EQ(left, 0);
}

TEST(EventLoopTest, RunAndWaitKnowsItsThread) {
    EventLoop loop("thread");
    EXPECT_FALSE(loop.on_loop_thread());
    bool nested = false;
    char name[16] = {};
    loop.run_and_wait([&] {
        EXPECT_TRUE(loop.on_loop_thread());
        pthread_getname_np(pthread_self(), name, sizeof(name));
        loop.run_and_wait([&] { nested = true; });
    });
    EXPECT_TRUE(nested);
    EXPECT_STREQ(name, "thread");
}

TEST(EventLoopTest, TasksThatHaveNotRunAreDroppedAtTheEnd) {
    bool dropped_ran = false;
    CallTask dropped([&] { dropped_ran = true; });
    std::promise<void> started;
    std::promise<void> go;
    CallTask blocker([&] {
        started.set_value();
        go.get_future().wait();
    });
    {
        auto loop = std::make_unique<EventLoop>("drop");
        loop->post(blocker);
        started.get_future().wait();
        loop->post(dropped);
        std::thread release([&] {
            std::this_thread::sleep_for(50ms);  // By then the destructor has asked the loop to stop.
            go.set_value();
        });
        loop.reset();
        release.join();
    }
    EXPECT_FALSE(dropped_ran);
}

TEST(EventLoopTest, SleepsWhenThereIsNothingToDo) {
    EventLoop loop("idle");
    const auto before = loop_cpu(loop);
    std::this_thread::sleep_for(500ms);
    EXPECT_LT(loop_cpu(loop) - before, 20ms);
}

TEST(EventLoopTest, TimersFireInOrderAndNotBeforeTheirTime) {
    EventLoop loop("timers");
    std::vector<int> fired;
    std::promise<void> done;
    std::vector<std::unique_ptr<EventLoop::Timer>> timers;
    Clock::time_point start;
    loop.run_and_wait([&] {
        start = Clock::now();
        for (int i : {3, 1, 2, 5, 4}) {
            timers.push_back(std::make_unique<EventLoop::Timer>(loop, [&, i] {
                EXPECT_GE(Clock::now() - start, i * 10ms);
                fired.push_back(i);
                if (i == 5) {
                    done.set_value();
                }
            }));
            timers.back()->start(i * 10ms);
        }
    });
    ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
    EXPECT_EQ(fired, (std::vector<int>{1, 2, 3, 4, 5}));
    loop.run_and_wait([&] { timers.clear(); });
}

TEST(EventLoopTest, ATimerThatWasCancelledOrDestroyedDoesNotFire) {
    EventLoop loop("cancel");
    bool cancelled_fired = false;
    bool destroyed_fired = false;
    int restarted_fired = 0;
    std::promise<void> done;
    std::unique_ptr<EventLoop::Timer> cancelled;
    std::unique_ptr<EventLoop::Timer> destroyed;
    std::unique_ptr<EventLoop::Timer> restarted;
    std::unique_ptr<EventLoop::Timer> last;
    loop.run_and_wait([&] {
        cancelled = std::make_unique<EventLoop::Timer>(loop, [&] { cancelled_fired = true; });
        destroyed = std::make_unique<EventLoop::Timer>(loop, [&] { destroyed_fired = true; });
        restarted = std::make_unique<EventLoop::Timer>(loop, [&] { ++restarted_fired; });
        last = std::make_unique<EventLoop::Timer>(loop, [&] {
            last.reset();  // A callback may destroy its own timer.
            done.set_value();
        });
        cancelled->start(5ms);
        destroyed->start(5ms);
        restarted->start(5ms);
        restarted->start(10ms);
        last->start(40ms);
        cancelled->cancel();
        destroyed.reset();
    });
    ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
    loop.run_and_wait([&] {
        cancelled.reset();
        restarted.reset();
    });
    EXPECT_FALSE(cancelled_fired);
    EXPECT_FALSE(destroyed_fired);
    EXPECT_EQ(restarted_fired, 1);
}

// Counts work like a UCP worker: it comes with or without a signal on the descriptor, and arm() refuses while some is
// pending. Checks that the loop keeps the order drain, arm, wait.
class CountingPoller final : public EventLoop::Poller {
public:
    CountingPoller() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
    ~CountingPoller() override { ::close(descriptor_); }

    bool progress() override {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto bytes = ::read(descriptor_, &count, sizeof(count));
        must_drain_ = false;
        int left = pending_.load();
        if (left == 0) {
            return false;
        }
        if (!endless_) {
            left = pending_.fetch_sub(1) - 1;
        }
        done_.fetch_add(1);
        return left > 0;
    }
    bool arm() override {
        EXPECT_FALSE(must_drain_) << "armed again without draining what refused it";
        arms_.fetch_add(1);
        must_drain_ = pending_.load() > 0;
        return !must_drain_;
    }
    [[nodiscard]] int event_fd() const override { return descriptor_; }

    void add_work(int count, bool tell = true) {
        pending_.fetch_add(count);
        if (tell) {
            const std::uint64_t one = 1;
            ASSERT_EQ(::write(descriptor_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
        }
    }
    void set_endless(bool endless) { endless_ = endless; }
    void clear() { pending_.store(0); }
    [[nodiscard]] int done() const { return done_.load(); }
    [[nodiscard]] int arms() const { return arms_.load(); }

private:
    const int descriptor_;
    std::atomic<int> pending_{0};
    std::atomic<int> done_{0};
    std::atomic<int> arms_{0};
    std::atomic<bool> endless_{false};
    bool must_drain_ = true;
};

struct PollerTest : ::testing::Test {
    void SetUp() override {
        loop.run_and_wait([&] { loop.add_poller(poller); });
    }
    void TearDown() override {
        loop.run_and_wait([&] { loop.remove_poller(poller); });
    }
    // Waits until the poller has done `count` pieces of work, and says how long that took.
    Clock::duration time_until_done(int count) {
        const Clock::time_point start = Clock::now();
        while (poller.done() < count && Clock::now() - start < kPatience) {
            std::this_thread::sleep_for(100us);
        }
        EXPECT_GE(poller.done(), count);
        return Clock::now() - start;
    }

    CountingPoller poller;
    EventLoop loop{"poller"};
};

TEST_F(PollerTest, EventsWakeTheLoop) {
    int expected = 0;
    for (int i = 0; i < 200; ++i) {
        poller.add_work(3);
        expected += 3;
        EXPECT_LT(time_until_done(expected), 500ms) << "round " << i;
    }
    EXPECT_EQ(loop.lost_events(), 0u);
}

TEST_F(PollerTest, WorkPostedOnTheLoopIsDrainedAtOnce) {
    CallTask task([&] { poller.add_work(5, /*tell=*/false); });
    loop.run_and_wait([] {});
    loop.post(task);
    EXPECT_LT(time_until_done(5), 500ms);
    EXPECT_EQ(loop.lost_events(), 0u);
}

TEST_F(PollerTest, ALostEventIsFoundByTheTickAndCounted) {
    std::this_thread::sleep_for(20ms);  // The loop sleeps by now.
    poller.add_work(1, /*tell=*/false);
    EXPECT_LT(time_until_done(1), 2s);
    loop.run_and_wait([] {});
    EXPECT_EQ(loop.lost_events(), 1u);
}

TEST_F(PollerTest, IdlePollersCostNothing) {
    const auto before = loop_cpu(loop);
    const int arms = poller.arms();
    std::this_thread::sleep_for(500ms);
    EXPECT_LT(loop_cpu(loop) - before, 20ms);
    EXPECT_LT(poller.arms() - arms, 20);
}

TEST_F(PollerTest, ABusyPollerStarvesNeitherTasksNorTimers) {
    poller.set_endless(true);
    poller.add_work(1);
    std::promise<void> fired;
    std::unique_ptr<EventLoop::Timer> timer;
    loop.run_and_wait([&] {
        timer = std::make_unique<EventLoop::Timer>(loop, [&] { fired.set_value(); });
        timer->start(10ms);
    });
    EXPECT_EQ(fired.get_future().wait_for(kPatience), std::future_status::ready);
    loop.run_and_wait([&] { timer.reset(); });
    poller.set_endless(false);
    poller.clear();
}

TEST_F(PollerTest, ARemovedPollerIsNotCalled) {
    CountingPoller other;
    loop.run_and_wait([&] {
        loop.add_poller(other);
        loop.remove_poller(other);
    });
    const int arms = other.arms();
    other.add_work(1);
    poller.add_work(1);
    time_until_done(1);
    loop.run_and_wait([] {});
    EXPECT_EQ(other.done(), 0);
    EXPECT_EQ(other.arms(), arms);
}

TEST_F(PollerTest, SteadyStateAllocatesNothing) {
    std::unique_ptr<EventLoop::Timer> timer;
    std::atomic<int> ticks{0};
    loop.run_and_wait([&] {
        timer = std::make_unique<EventLoop::Timer>(loop, [&] {
            ticks.fetch_add(1);
            timer->start(1ms);
        });
        timer->start(1ms);
    });
    CallTask task([&] { poller.add_work(1, /*tell=*/false); });
    const test::AllocationCount allocations;
    for (int i = 1; i <= 100; ++i) {
        loop.post(task);
        time_until_done(2 * i - 1);
        poller.add_work(1);
        time_until_done(2 * i);
    }
    while (ticks.load() < 20) {
        std::this_thread::sleep_for(1ms);
    }
    // A tick between our two steps of add_work() takes the event for lost, and says so.
    if (loop.lost_events() == 0) {
        EXPECT_EQ(allocations.so_far(), 0);
    }
    loop.run_and_wait([&] { timer.reset(); });
}

}  // namespace
}  // namespace sluice
