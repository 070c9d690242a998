#include "runtime/exchange/bootstrap_in_process.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace sluice {

namespace {

class InProcessBootstrap final : public Bootstrap {
public:
    struct Mailbox {
        std::mutex mutex;
        std::condition_variable arrived;
        std::deque<Received> messages;
    };
    using Mailboxes = std::vector<std::unique_ptr<Mailbox>>;

    InProcessBootstrap(int rank, std::shared_ptr<Mailboxes> mailboxes, std::size_t most_bytes)
        : Bootstrap(most_bytes), rank_(rank), mailboxes_(std::move(mailboxes)) {}

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return static_cast<int>(mailboxes_->size()); }

protected:
    Status start_send(int to, Message message) override {
        Mailbox& mailbox = *(*mailboxes_)[static_cast<std::size_t>(to)];
        bool was_empty = false;
        {
            const std::lock_guard lock(mailbox.mutex);
            was_empty = mailbox.messages.empty();
            mailbox.messages.push_back({rank_, std::move(message)});
        }
        if (was_empty) {
            mailbox.arrived.notify_one();
        }
        return ok_status();
    }

    Result<std::optional<Received>> poll() override {
        Mailbox& mailbox = mine();
        const std::lock_guard lock(mailbox.mutex);
        if (mailbox.messages.empty()) {
            return std::optional<Received>();
        }
        std::optional<Received> received = std::move(mailbox.messages.front());
        mailbox.messages.pop_front();
        return received;
    }

    bool sends_done() override { return true; }

    // A message ends it; the steps are for the deadline only, and grow so that a thousand waiting ranks leave the machine to
    // those that work.
    void pause(int tries) override {
        const std::chrono::milliseconds step{5 << std::min(tries, 6)};
        Mailbox& mailbox = mine();
        std::unique_lock lock(mailbox.mutex);
        mailbox.arrived.wait_for(lock, step, [&] { return !mailbox.messages.empty(); });
    }

private:
    Mailbox& mine() { return *(*mailboxes_)[static_cast<std::size_t>(rank_)]; }

    int rank_;
    std::shared_ptr<Mailboxes> mailboxes_;
};

}  // namespace

std::vector<std::unique_ptr<Bootstrap>> in_process_bootstraps(int size, std::size_t most_bytes) {
    auto mailboxes = std::make_shared<InProcessBootstrap::Mailboxes>();
    std::vector<std::unique_ptr<Bootstrap>> result;
    mailboxes->reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
        mailboxes->push_back(std::make_unique<InProcessBootstrap::Mailbox>());
    }
    for (int rank = 0; rank < size; ++rank) {
        result.push_back(std::make_unique<InProcessBootstrap>(rank, mailboxes, most_bytes));
    }
    return result;
}

}  // namespace sluice
