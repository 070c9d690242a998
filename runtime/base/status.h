#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace sluice {

/// What kind of failure a Status reports. The kinds are what callers act on: the command line maps them to exit
/// codes, the exchange decides by them whether a sync can go on.
enum class StatusCode {
    kOk,
    kInvalidArgument,    ///< Wrong by arguments and files alone: option, layout, malformed file.
    kPlanRefused,        ///< No correct plan exists: indivisible heads, missing tensor, hole, undeclared conversion.
    kPeerLost,           ///< A peer died or its link failed; `peer()` names it when known.
    kDeadlineExceeded,   ///< A wait ran past its deadline; the message names whom it waited for.
    kAborted,            ///< Stopped because somebody else failed first, or by the caller.
    kMismatch,           ///< Bytes differ from what they must be (checksum, verification).
    kResourceExhausted,  ///< A limit was reached: memory, slots, locked memory, descriptors.
    kUnsupported,        ///< Valid, but this build or machine cannot do it.
    kInternal,           ///< A broken invariant of ours, or a library error that none of the above describes.
};

/// Stable lower-case name of a code ("peer lost"), for messages and JSON.
const char* to_string(StatusCode code);

/// The outcome of an operation that can fail in an expected way. An error carries one line of text that says what
/// failed, which value it was, and what to do. Cheap to move; an ok Status holds no heap memory.
class [[nodiscard]] Status {
public:
    Status() = default;
    Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
        assert(code != StatusCode::kOk);
    }
    Status(StatusCode code, std::string message, int peer) : Status(code, std::move(message)) { peer_ = peer; }

    [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
    explicit operator bool() const { return ok(); }
    [[nodiscard]] StatusCode code() const { return code_; }
    [[nodiscard]] const std::string& message() const { return message_; }
    /// World rank of the peer the failure is about, when there is one.
    [[nodiscard]] std::optional<int> peer() const { return peer_; }

    /// The same failure with `context` and ": " before its message.
    [[nodiscard]] Status with_context(const std::string& context) const&;

private:
    StatusCode code_ = StatusCode::kOk;
    std::string message_;
    std::optional<int> peer_;
};

inline Status ok_status() { return {}; }
Status invalid_argument(std::string message);
Status plan_refused(std::string message);
Status peer_lost(std::string message, int peer);
Status deadline_exceeded(std::string message);
Status internal_error(std::string message);

/// Either a value or the Status that says why there is none. `value()` may only be called when `ok()`.
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}        // NOLINT(google-explicit-constructor)
    Result(Status status) : state_(std::in_place_index<0>, std::move(status)) {  // NOLINT(google-explicit-constructor)
        assert(!std::get<0>(state_).ok());
    }

    [[nodiscard]] bool ok() const { return state_.index() == 1; }
    explicit operator bool() const { return ok(); }
    [[nodiscard]] Status status() const { return ok() ? Status() : std::get<0>(state_); }

    [[nodiscard]] T& value() & {
        assert(ok());
        return std::get<1>(state_);
    }
    [[nodiscard]] const T& value() const& {
        assert(ok());
        return std::get<1>(state_);
    }
    [[nodiscard]] T&& value() && {
        assert(ok());
        return std::get<1>(std::move(state_));
    }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

private:
    std::variant<Status, T> state_;
};

}  // namespace sluice

/// Returns the Status of `expression` from the enclosing function when it is an error.
#define SLUICE_RETURN_IF_ERROR(expression)                                          \
    do {                                                                            \
        if (::sluice::Status sluice_status_ = (expression); !sluice_status_.ok()) { \
            return sluice_status_;                                                  \
        }                                                                           \
    } while (false)

#define SLUICE_CONCAT_INNER_(a, b) a##b
#define SLUICE_CONCAT_(a, b) SLUICE_CONCAT_INNER_(a, b)
#define SLUICE_ASSIGN_OR_RETURN_INNER_(result, lhs, expression) \
    auto result = (expression);                                 \
    if (!result.ok()) {                                         \
        return result.status();                                 \
    }                                                           \
    lhs = std::move(result).value()
/// `lhs = value of expression`, or returns its Status from the enclosing function.
#define SLUICE_ASSIGN_OR_RETURN(lhs, expression) \
    SLUICE_ASSIGN_OR_RETURN_INNER_(SLUICE_CONCAT_(sluice_result_, __LINE__), lhs, expression)
