#include "runtime/services/copy_threads.h"

#include <fmt/format.h>

#include <pthread.h>

namespace sluice {

CopyThreads::CopyThreads(EventLoop& loop, const std::string& name, int count) : loop_(loop) {
    for (int i = 0; i < count; ++i) {
        threads_.emplace_back([this, i, own_name = fmt::format("{} {}", name, i)] {
            pthread_setname_np(pthread_self(), own_name.substr(0, 15).c_str());
            run(i);
        });
    }
}

CopyThreads::~CopyThreads() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
    // A job may be gone as soon as its end is posted.
    while (first_ != nullptr) {
        CopyJob* job = first_;
        first_ = job->next_;
        loop_.post(job->finished_);
    }
}

void CopyThreads::enqueue(CopyJob& job) {
    bool somebody_sleeps = false;
    {
        const std::lock_guard lock(mutex_);
        job.next_ = nullptr;
        job.was_run_ = false;
        (first_ == nullptr ? first_ : last_->next_) = &job;
        last_ = &job;
        somebody_sleeps = sleeping_ > 0;
    }
    if (somebody_sleeps) {
        changed_.notify_one();
    }
}

CopyJob* CopyThreads::wait_for_job() {
    std::unique_lock lock(mutex_);
    ++sleeping_;
    changed_.wait(lock, [this] { return stopping_ || first_ != nullptr; });
    --sleeping_;
    if (stopping_) {
        return nullptr;
    }
    CopyJob* job = first_;
    first_ = job->next_;
    return job;
}

void CopyThreads::run(int number) {
    while (CopyJob* job = wait_for_job()) {
        job->was_run_ = true;
        job->ran_on_ = number;
        job->run();
        loop_.post(job->finished_);
    }
}

}  // namespace sluice
