#pragma once

#include "runtime/services/event_loop.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sluice {

class CopyThreads;

/// Long work for a copy thread, owned by whoever enqueues it. It must stay alive from enqueue() until finished()
/// has started to run; from then on it may be enqueued again or destroyed.
class CopyJob {
public:
    CopyJob() = default;
    CopyJob(const CopyJob&) = delete;
    CopyJob& operator=(const CopyJob&) = delete;
    virtual ~CopyJob() = default;

    /// On a copy thread, or, when it is small, on the event loop.
    virtual void run() = 0;
    /// On the event loop, once per enqueue, after run().
    virtual void finished() = 0;
    /// False in finished() when the copy threads were stopped before the job's turn, so that run() was left out.
    [[nodiscard]] bool was_run() const { return was_run_; }
    /// The number of the copy thread that ran it last, from 0; kLoop when the event loop did.
    [[nodiscard]] int ran_on() const { return ran_on_; }
    static constexpr int kLoop = -1;

private:
    friend class CopyThreads;
    struct Finished final : LoopTask {
        explicit Finished(CopyJob& owner) : job(owner) {}
        void run() override;
        CopyJob& job;
    };

    CopyJob* next_ = nullptr;
    bool was_run_ = false;
    int ran_on_ = 0;
    CopyThreads* at_once_by_ = nullptr;  // when the loop ran it
    std::int64_t at_once_bytes_ = 0;
    Finished finished_{*this};
};

/// Threads that start jobs in the order of enqueueing and post their ends to an event loop. They sleep when they have
/// nothing to do.
class CopyThreads {
public:
    /// Starts `count` threads (at least 1). `loop` must outlive them. `name` (13 characters at most) and a number are what debuggers
    /// and `top` show. `at_once_bytes`: see enqueue(); 0 = never.
    CopyThreads(EventLoop& loop, const std::string& name, int count, std::int64_t at_once_bytes = 0);
    /// Waits for the jobs that run now, starts no other one, and posts the end of all. Not from a copy thread or the loop.
    ~CopyThreads();
    CopyThreads(const CopyThreads&) = delete;
    CopyThreads& operator=(const CopyThreads&) = delete;

    /// Any thread; allocates nothing, and holds a lock for some instructions only.
    void enqueue(CopyJob& job);
    /// On the event loop, for a job that touches `bytes` bytes of host memory. One of at most `at_once_bytes` is run before this
    /// returns, since to wake a thread and to be woken by it costs more; unless the loop has done four times as many since it
    /// last went round. finished() runs later all the same.
    void enqueue(CopyJob& job, std::int64_t bytes);

private:
    friend class CopyJob;
    void run(int number);
    /// Waits for work; the next job, or nullptr when stopping.
    CopyJob* wait_for_job();

    EventLoop& loop_;
    const std::int64_t at_once_bytes_;
    std::int64_t at_once_ = 0;  // bytes of jobs that the loop has run and not finished
    std::mutex mutex_;
    std::condition_variable changed_;
    CopyJob* first_ = nullptr;
    CopyJob* last_ = nullptr;
    int sleeping_ = 0;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace sluice
