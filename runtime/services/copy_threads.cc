#include "runtime/services/copy_threads.h"

#include <fmt/format.h>

#include <pthread.h>
#include <utility>

namespace sluice {

void CopyJob::Finished::run() {
    if (CopyThreads* threads = std::exchange(job.at_once_by_, nullptr)) {
        threads->at_once_ -= job.at_once_bytes_;
    }
    job.finished();
}

CopyThreads::CopyThreads(EventLoop& loop, const std::string& name, int count, std::int64_t at_once_bytes)
    : loop_(loop), at_once_bytes_(at_once_bytes) {
    for (int i = 0; i < count; ++i) {
        threads_.emplace_back([this, i, own_name = fmt::format("{} {}", name, i)] {
            pthread_setname_np(pthread_self(), own_name.substr(0, 15).c_str());
            run(i);
        });
    }
}

CopyThreads::~CopyThreads() {
    loop_.run_and_wait([] {});  // Ends of jobs that the loop has run itself count down in here.
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

void CopyThreads::enqueue(CopyJob& job, std::int64_t bytes) {
    if (bytes > at_once_bytes_ || at_once_ + bytes > 4 * at_once_bytes_ || at_once_bytes_ == 0) {
        enqueue(job);
        return;
    }
    at_once_ += bytes;
    job.at_once_by_ = this;
    job.at_once_bytes_ = bytes;
    job.was_run_ = true;
    job.ran_on_ = CopyJob::kLoop;
    job.run();
    loop_.post(job.finished_);
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
