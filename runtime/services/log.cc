#include "runtime/services/log.h"

#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <mutex>

namespace sluice::log {
namespace {

using Fanout = spdlog::sinks::dist_sink_mt;

constexpr const char* kPattern = "%H:%M:%S.%e %n %l: %v";

spdlog::level::level_enum to_spdlog(LogLevel level) {
    switch (level) {
        case LogLevel::kDebug:
            return spdlog::level::debug;
        case LogLevel::kInfo:
            return spdlog::level::info;
        case LogLevel::kWarning:
            return spdlog::level::warn;
        case LogLevel::kError:
            return spdlog::level::err;
        case LogLevel::kOff:
            break;
    }
    return spdlog::level::off;
}

LogLevel from_spdlog(spdlog::level::level_enum level) {
    switch (level) {
        case spdlog::level::trace:
        case spdlog::level::debug:
            return LogLevel::kDebug;
        case spdlog::level::info:
            return LogLevel::kInfo;
        case spdlog::level::warn:
            return LogLevel::kWarning;
        case spdlog::level::err:
        case spdlog::level::critical:
            return LogLevel::kError;
        default:
            return LogLevel::kOff;
    }
}

std::shared_ptr<spdlog::logger> make_logger(const std::string& tag, std::shared_ptr<Fanout> sinks, LogLevel level) {
    auto logger = std::make_shared<spdlog::logger>(tag, std::move(sinks));
    logger->set_pattern(kPattern);
    logger->set_level(to_spdlog(level));
    return logger;
}

// The sinks behind spdlog's default logger, which is ours from the first use on. A fan-out sink, because the sink list
// of a logger itself may not change while others log.
const std::shared_ptr<Fanout>& sinks() {
    static const std::shared_ptr<Fanout> fanout = [] {
        auto made = std::make_shared<Fanout>();
        made->add_sink(std::make_shared<spdlog::sinks::stderr_sink_mt>());
        spdlog::set_default_logger(make_logger("sluice", made, LogLevel::kInfo));
        return made;
    }();
    return fanout;
}

spdlog::logger& logger() {
    sinks();
    return *spdlog::default_logger_raw();
}

}  // namespace

void set_level(LogLevel level) { logger().set_level(to_spdlog(level)); }
LogLevel level() { return from_spdlog(logger().level()); }
bool enabled(LogLevel level) { return level != LogLevel::kOff && logger().should_log(to_spdlog(level)); }

void set_tag(std::string_view tag) {
    const LogLevel kept = level();
    spdlog::set_default_logger(make_logger(std::string(tag), sinks(), kept));
}

void write(LogLevel level, std::string_view message) {
    if (!enabled(level)) {
        return;
    }
    if (message.find_first_of("\r\n") == std::string_view::npos) {
        logger().log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
        return;
    }
    std::string line(message);
    std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
    logger().log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

struct Observer::Sink final : spdlog::sinks::base_sink<std::mutex> {
    explicit Sink(std::function<void(LogLevel, std::string_view)> see_line) : see(std::move(see_line)) {}
    void sink_it_(const spdlog::details::log_msg& message) override {
        see(from_spdlog(message.level), std::string_view(message.payload.data(), message.payload.size()));
    }
    void flush_() override {}

    const std::function<void(LogLevel, std::string_view)> see;
};

Observer::Observer(std::function<void(LogLevel level, std::string_view message)> see)
    : sink_(std::make_shared<Sink>(std::move(see))) {
    sinks()->add_sink(sink_);
}

// The fan-out removes under the lock that it logs under, so no call of `see` is running after this.
Observer::~Observer() { sinks()->remove_sink(sink_); }

}  // namespace sluice::log
