#include "runtime/services/copy_thread.h"

#include <pthread.h>

namespace sluice {

CopyThread::CopyThread(EventLoop& loop, const std::string& name) : loop_(loop) {
    thread_ = std::thread([this, name] {
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        run();
    });
}

CopyThread::~CopyThread() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
    // A job may be gone as soon as its end is posted.
    while (first_ != nullptr) {
        CopyJob* job = first_;
        first_ = job->next_;
        loop_.post(job->finished_);
    }
}

void CopyThread::enqueue(CopyJob& job) {
    bool was_empty = false;
    {
        const std::lock_guard lock(mutex_);
        job.next_ = nullptr;
        job.was_run_ = false;
        was_empty = first_ == nullptr;
        (was_empty ? first_ : last_->next_) = &job;
        last_ = &job;
    }
    if (was_empty) {
        changed_.notify_one();
    }
}

CopyJob* CopyThread::wait_for_job() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || first_ != nullptr; });
    if (stopping_) {
        return nullptr;
    }
    CopyJob* job = first_;
    first_ = job->next_;
    return job;
}

void CopyThread::run() {
    while (CopyJob* job = wait_for_job()) {
        job->was_run_ = true;
        job->run();
        loop_.post(job->finished_);
    }
}

}  // namespace sluice
