#include "runtime/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace sluice {
namespace {

Result<int> half(int n) {
    if (n % 2 != 0) {
        return invalid_argument(std::to_string(n) + " is odd");
    }
    return n / 2;
}

Result<int> quarter(int n) {
    SLUICE_ASSIGN_OR_RETURN(const int h, half(n));
    SLUICE_ASSIGN_OR_RETURN(const int q, half(h));
    return q;
}

Status check_quarter(int n) {
    SLUICE_RETURN_IF_ERROR(quarter(n).status());
    return ok_status();
}

TEST(StatusTest, OkHoldsNothing) {
    const Status status;
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(status.code(), StatusCode::kOk);
    EXPECT_EQ(status.message(), "");
    EXPECT_EQ(status.peer(), std::nullopt);
}

TEST(StatusTest, ContextKeepsCodeAndPeer) {
    const Status status = peer_lost("connection reset", 7).with_context("group 3");
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_EQ(status.message(), "group 3: connection reset");
    EXPECT_EQ(status.peer(), 7);
}

TEST(StatusTest, MacrosPassValuesAndErrors) {
    const auto three = quarter(12);
    ASSERT_TRUE(three.ok());
    EXPECT_EQ(*three, 3);
    EXPECT_TRUE(three.status().ok());
    EXPECT_EQ(quarter(6).status().message(), "3 is odd");
    EXPECT_EQ(quarter(5).status().message(), "5 is odd");
    EXPECT_TRUE(check_quarter(8).ok());
    EXPECT_EQ(check_quarter(9).code(), StatusCode::kInvalidArgument);
}

TEST(StatusTest, ResultMovesItsValueOut) {
    Result<std::unique_ptr<int>> result(std::make_unique<int>(4));
    const std::unique_ptr<int> value = std::move(result).value();
    EXPECT_EQ(*value, 4);
}

TEST(StatusTest, EveryCodeHasItsOwnName) {
    EXPECT_STREQ(to_string(StatusCode::kPeerLost), "peer lost");
    EXPECT_STREQ(to_string(StatusCode::kDeadlineExceeded), "deadline exceeded");
    EXPECT_STREQ(to_string(StatusCode::kInternal), "internal error");
    EXPECT_STREQ(to_string(StatusCode::kOk), "ok");
}

}  // namespace
}  // namespace sluice
