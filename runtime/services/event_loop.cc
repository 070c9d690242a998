#include "runtime/services/event_loop.h"

#include "runtime/services/log.h"

#include <boost/intrusive/set.hpp>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <poll.h>
#include <pthread.h>
#include <string>
#include <sys/eventfd.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace sluice {
namespace {

using Clock = EventLoop::Clock;

// How long a lost event could stall the loop at most. Waking once a second costs nothing measurable.
constexpr Clock::duration kSafetyTick = std::chrono::seconds(1);

struct TimerNode : boost::intrusive::set_base_hook<>, std::enable_shared_from_this<TimerNode> {
    explicit TimerNode(std::function<void()> timer_callback) : callback(std::move(timer_callback)) {}

    Clock::time_point deadline;
    const std::function<void()> callback;

    friend bool operator<(const TimerNode& a, const TimerNode& b) { return a.deadline < b.deadline; }
};

int checked_descriptor(int descriptor, const char* what) {
    if (descriptor < 0) {
        throw std::system_error(errno, std::generic_category(), what);
    }
    return descriptor;
}

bool is_readable(int descriptor) {
    pollfd entry{descriptor, POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
}

void drain_counter(int descriptor) {
    std::uint64_t count = 0;
    // Non-blocking; an empty counter (EAGAIN) is as good as a drained one.
    [[maybe_unused]] const ssize_t bytes = ::read(descriptor, &count, sizeof(count));
}

}  // namespace

struct EventLoop::Impl {
    explicit Impl(const std::string& name)
        : wake_descriptor(checked_descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")) {
        watched.push_back({wake_descriptor, POLLIN, 0});
        thread = std::thread([this, name] {
            pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
            thread_id.store(std::this_thread::get_id());
            run();
        });
    }

    ~Impl() {
        stopping.store(true);
        signal();
        thread.join();
        ::close(wake_descriptor);
    }

    void post(LoopTask& task) {
        LoopTask* former = posted.load(std::memory_order_relaxed);
        do {
            task.next_ = former;
        } while (!posted.compare_exchange_weak(former, &task, std::memory_order_seq_cst, std::memory_order_relaxed));
        // Pairs with sleep(): either it sees the task, or we see that it sleeps.
        if (sleeping.load(std::memory_order_seq_cst) && sleeping.exchange(false)) {
            signal();
        }
    }

    void signal() const {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t bytes = ::write(wake_descriptor, &one, sizeof(one));
    }

    void run() {
        while (!stopping.load(std::memory_order_relaxed)) {
            run_posted();
            run_due_timers();
            // A poller that stays busy never lets us sleep, but comes back here after each bounded round.
            if (!drain_pollers() || !arm_pollers()) {
                continue;
            }
            sleep();
        }
    }

    void run_posted() {
        LoopTask* batch = posted.exchange(nullptr, std::memory_order_acquire);
        LoopTask* oldest = nullptr;
        while (batch != nullptr) {  // The stack has the newest first.
            LoopTask* next = batch->next_;
            batch->next_ = oldest;
            oldest = batch;
            batch = next;
        }
        while (oldest != nullptr && !stopping.load(std::memory_order_relaxed)) {
            LoopTask* task = oldest;
            oldest = task->next_;
            task->run();
        }
    }

    void run_due_timers() {
        if (timers.empty()) {
            return;
        }
        const Clock::time_point now = Clock::now();
        while (!timers.empty() && timers.begin()->deadline <= now) {
            TimerNode& node = *timers.begin();
            timers.erase(timers.begin());
            // A callback may destroy its own timer.
            const std::shared_ptr<TimerNode> alive = node.shared_from_this();
            node.callback();
        }
    }

    bool drain_pollers() {
        bool idle = true;
        for (std::size_t i = 0; i < pollers.size(); ++i) {
            if (pollers[i]->progress()) {
                idle = false;
            }
        }
        return idle;
    }

    bool arm_pollers() {
        for (std::size_t i = 0; i < pollers.size(); ++i) {
            if (!pollers[i]->arm()) {
                return false;
            }
        }
        return true;
    }

    void sleep() {
        sleeping.store(true, std::memory_order_seq_cst);
        if (posted.load(std::memory_order_seq_cst) != nullptr || stopping.load(std::memory_order_seq_cst)) {
            sleeping.store(false, std::memory_order_relaxed);
            return;
        }
        const timespec timeout = time_to_sleep();
        const int told = ::ppoll(watched.data(), watched.size(), &timeout, nullptr);
        sleeping.store(false, std::memory_order_relaxed);
        if (told > 0 && watched.front().revents != 0) {
            drain_counter(wake_descriptor);
        }
        if (told == 0) {
            look_for_lost_events();
        }
    }

    [[nodiscard]] timespec time_to_sleep() const {
        const Clock::time_point now = Clock::now();
        Clock::time_point until = now + kSafetyTick;
        if (!timers.empty()) {
            until = std::min(until, timers.begin()->deadline);
        }
        const auto left = std::max(until - now, Clock::duration::zero());
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
        timespec out{};
        out.tv_sec = seconds.count();
        out.tv_nsec = std::chrono::nanoseconds(left - seconds).count();
        return out;
    }

    // A timer woke us, no descriptor. If a poller has work all the same, its descriptor failed to tell; only the tick or
    // somebody's timer saved us from a stall. The work itself is done by the ordinary round that follows.
    void look_for_lost_events() {
        for (Poller* poller : pollers) {
            const int descriptor = poller->event_fd();
            if (!is_readable(descriptor) && !poller->arm() && !is_readable(descriptor)) {
                const std::uint64_t count = lost.fetch_add(1, std::memory_order_relaxed) + 1;
                log::info("event loop: a timer found work that descriptor {} had not told of ({} times so far)",
                          descriptor, count);
            }
        }
    }

    void start(TimerNode& node, Clock::duration after) {
        cancel(node);
        node.deadline = Clock::now() + after;
        timers.insert(node);
    }

    void cancel(TimerNode& node) {
        if (node.is_linked()) {
            timers.erase(timers.iterator_to(node));
        }
    }

    void add(Poller& poller) {
        pollers.push_back(&poller);
        watched.push_back({poller.event_fd(), POLLIN, 0});
    }

    void remove(Poller& poller) {
        const auto found = std::find(pollers.begin(), pollers.end(), &poller);
        if (found != pollers.end()) {
            watched.erase(watched.begin() + 1 + (found - pollers.begin()));
            pollers.erase(found);
        }
    }

    const int wake_descriptor;  // Another thread posted.
    boost::intrusive::multiset<TimerNode> timers;
    std::vector<Poller*> pollers;
    std::vector<pollfd> watched;  // Our own, then one of each poller.

    std::atomic<LoopTask*> posted{nullptr};
    std::atomic<bool> sleeping{false};
    std::atomic<bool> stopping{false};
    std::atomic<std::uint64_t> lost{0};

    std::atomic<std::thread::id> thread_id{};
    std::thread thread;
};

EventLoop::EventLoop(const std::string& name) : impl_(std::make_unique<Impl>(name)) {}

EventLoop::~EventLoop() { assert(!on_loop_thread()); }

void EventLoop::post(LoopTask& task) { impl_->post(task); }

bool EventLoop::on_loop_thread() const { return impl_->thread_id.load() == std::this_thread::get_id(); }

std::uint64_t EventLoop::lost_events() const { return impl_->lost.load(std::memory_order_relaxed); }

void EventLoop::run_and_wait(const std::function<void()>& work) {
    if (on_loop_thread()) {
        work();
        return;
    }
    struct Waiter final : LoopTask {
        explicit Waiter(const std::function<void()>& waited_work) : work(waited_work) {}
        void run() override {
            work();
            // Told under the lock: the waiter may return, and destroy us, as soon as it sees `done`.
            const std::lock_guard<std::mutex> lock(mutex);
            done = true;
            condition.notify_one();
        }
        const std::function<void()>& work;
        std::mutex mutex;
        std::condition_variable condition;
        bool done = false;
    };
    Waiter waiter(work);
    post(waiter);
    std::unique_lock<std::mutex> lock(waiter.mutex);
    waiter.condition.wait(lock, [&] { return waiter.done; });
}

void EventLoop::add_poller(Poller& poller) {
    assert(on_loop_thread());
    impl_->add(poller);
}

void EventLoop::remove_poller(Poller& poller) {
    assert(on_loop_thread());
    impl_->remove(poller);
}

struct EventLoop::Timer::Impl final : TimerNode {
    Impl(EventLoop::Impl& timer_loop, std::function<void()> timer_callback)
        : TimerNode(std::move(timer_callback)), loop(timer_loop) {}
    EventLoop::Impl& loop;
};

EventLoop::Timer::Timer(EventLoop& loop, std::function<void()> callback)
    : impl_(std::make_shared<Impl>(*loop.impl_, std::move(callback))) {}

EventLoop::Timer::~Timer() { cancel(); }

void EventLoop::Timer::start(Clock::duration after) { impl_->loop.start(*impl_, after); }

void EventLoop::Timer::cancel() {
    // An unlinked timer may be destroyed after its loop.
    if (impl_->is_linked()) {
        impl_->loop.cancel(*impl_);
    }
}

}  // namespace sluice
