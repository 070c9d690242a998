#pragma once

#include "runtime/services/event_loop.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace sluice {

/// Long work for the copy thread, owned by whoever enqueues it. It must stay alive from enqueue() until finished()
/// has started to run; from then on it may be enqueued again or destroyed.
class CopyJob {
public:
    CopyJob() = default;
    CopyJob(const CopyJob&) = delete;
    CopyJob& operator=(const CopyJob&) = delete;
    virtual ~CopyJob() = default;

    /// On the copy thread.
    virtual void run() = 0;
    /// On the event loop, once per enqueue, after run().
    virtual void finished() = 0;
    /// False in finished() when the copy thread was stopped before the job's turn, so that run() was left out.
    [[nodiscard]] bool was_run() const { return was_run_; }

private:
    friend class CopyThread;
    struct Finished final : LoopTask {
        explicit Finished(CopyJob& owner) : job(owner) {}
        void run() override { job.finished(); }
        CopyJob& job;
    };

    CopyJob* next_ = nullptr;
    bool was_run_ = false;
    Finished finished_{*this};
};

/// One thread that runs jobs in the order of enqueueing and posts their ends to an event loop. It sleeps when it has
/// nothing to do.
class CopyThread {
public:
    /// Starts the thread. `loop` must outlive it. `name` (15 characters at most) is what debuggers and `top` show.
    CopyThread(EventLoop& loop, const std::string& name);
    /// Waits for the job that runs now, starts no other one, and posts the end of all. Not from the copy thread.
    ~CopyThread();
    CopyThread(const CopyThread&) = delete;
    CopyThread& operator=(const CopyThread&) = delete;

    /// Any thread; allocates nothing, and holds a lock for some instructions only.
    void enqueue(CopyJob& job);

private:
    void run();
    /// Waits for work; the next job, or nullptr when stopping.
    CopyJob* wait_for_job();

    EventLoop& loop_;
    std::mutex mutex_;
    std::condition_variable changed_;
    CopyJob* first_ = nullptr;
    CopyJob* last_ = nullptr;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace sluice
