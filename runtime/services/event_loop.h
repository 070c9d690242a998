#pragma once

#include "runtime/base/status.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace sluice {

/// A unit of work for an EventLoop, owned by whoever posts it. It may be posted again once it has started to run.
/// Embedding it in the object it works for is what makes posting free of allocation.
class LoopTask {
public:
    LoopTask() = default;
    LoopTask(const LoopTask&) = delete;
    LoopTask& operator=(const LoopTask&) = delete;
    virtual ~LoopTask() = default;
    virtual void run() = 0;

private:
    friend class EventLoop;
    LoopTask* next_ = nullptr;
};

/// One thread that runs tasks, timers and what pollers drain. It sleeps when there is nothing to do.
/// Everything that belongs to the exchange lives on it, so none of that needs a lock.
class EventLoop {
public:
    using Clock = std::chrono::steady_clock;

    /// Starts the thread; `name` (15 characters at most) is what debuggers and `top` show.
    explicit EventLoop(const std::string& name);
    /// Stops and joins. Tasks that were posted and have not run are dropped; whoever owns them must know. Not from the loop.
    ~EventLoop();
    EventLoop(const EventLoop&) = delete;
    EventLoop& operator=(const EventLoop&) = delete;

    /// Runs `task` on the loop, in the order of posting. Any thread; never blocks, never allocates.
    /// The task must stay alive until it has run.
    void post(LoopTask& task);
    /// Runs `work` on the loop and waits for its end. Set-up and tear-down only. Called on the loop it runs at once.
    void run_and_wait(const std::function<void()>& work);
    [[nodiscard]] bool on_loop_thread() const;
    /// How often a timer found work of a poller that its descriptor had not told of. Any thread. Not 0 means a bug below us;
    /// a safety tick once a second bounds what it costs.
    [[nodiscard]] std::uint64_t lost_events() const;

    /// A poller joins a descriptor that tells of events (the UCX event fd) with the work that drains them. All calls
    /// run on the loop.
    class Poller {
    public:
        virtual ~Poller() = default;
        /// Does some pending work; true when there may be more at once. Bounded: it returns after a while even under load.
        virtual bool progress() = 0;
        /// Prepares the descriptor to become readable at the next event; false when events are already pending.
        virtual bool arm() = 0;
        [[nodiscard]] virtual int event_fd() const = 0;
    };
    /// On the loop. The poller must be removed (on the loop) before it dies; the descriptor stays the poller's.
    void add_poller(Poller& poller);
    void remove_poller(Poller& poller);

    /// A timer whose callback runs on the loop. All calls on the loop. Restarting replaces the former deadline;
    /// after cancel() or destruction the callback will not run. Arming it again allocates nothing.
    class Timer {
    public:
        Timer(EventLoop& loop, std::function<void()> callback);
        ~Timer();
        Timer(const Timer&) = delete;
        Timer& operator=(const Timer&) = delete;
        void start(Clock::duration after);
        void cancel();

    private:
        struct Impl;
        std::shared_ptr<Impl> impl_;
    };

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
