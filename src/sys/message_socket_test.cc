// SPDX-License-Identifier: Apache-2.0
#include "sys/message_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <thread>

#include "sys/readable.h"

namespace loralei {
namespace {

using Ends = std::pair<Descriptor, Descriptor>;
Ends made() { return std::move(message_socket_pair()).value(); }

TEST(MessageSocket, KeepsMessagesApartAndBringsDescriptors) {
  const Ends ends = made();
  const Descriptor memory(::memfd_create("sent", MFD_CLOEXEC));
  ASSERT_EQ(::write(memory.get(), "inside", 6), 6);
  const std::vector<int> both = {memory.get(), ends.first.get()};
  ASSERT_TRUE(send_message(ends.first.get(), "one", {}, 0).ok());
  ASSERT_TRUE(send_message(ends.first.get(), std::string(kMessageBytesMax, 'x'), both, 0).ok());
  SocketMessage message;
  ASSERT_EQ(receive_message(ends.second.get(), message, MessageWait::kYes), Received::kMessage);
  EXPECT_EQ(message.bytes, "one");
  EXPECT_TRUE(message.descriptors.empty());
  ASSERT_EQ(receive_message(ends.second.get(), message, MessageWait::kYes), Received::kMessage);
  EXPECT_EQ(message.bytes, std::string(kMessageBytesMax, 'x'));
  ASSERT_EQ(message.descriptors.size(), 2u);
  EXPECT_NE(::fcntl(message.descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  char text[7] = {};
  ASSERT_EQ(::pread(message.descriptors[0].get(), text, 6, 0), 6);
  EXPECT_STREQ(text, "inside");
  EXPECT_EQ(receive_message(ends.second.get(), message, MessageWait::kNo), Received::kNothing);
}

TEST(MessageSocket, ThatNobodyReadsOverflowsWithoutHarm) {
  const Ends ends = made();
  int sent = 0;
  Status status;
  while ((status = send_message(ends.first.get(), "message", {}, 1)).ok()) ++sent;
  EXPECT_EQ(status.error().code, ErrorCode::kOverloaded);
  EXPECT_GT(sent, 50);  // an adapter is one
  SocketMessage message;
  for (int i = 0; i < sent; ++i)
    ASSERT_EQ(receive_message(ends.second.get(), message, MessageWait::kNo), Received::kMessage);
  EXPECT_EQ(receive_message(ends.second.get(), message, MessageWait::kNo), Received::kNothing);
  EXPECT_TRUE(send_message(ends.first.get(), "again", {}, 0).ok());
}

TEST(MessageSocket, TellsThatTheOtherSideIsGone) {
  Ends ends = made();
  std::thread reader([&] {
    SocketMessage message;
    EXPECT_EQ(receive_message(ends.second.get(), message, MessageWait::kYes), Received::kEnd);
  });
  end_messages(ends.first.get());
  reader.join();
  Ends closed = made();
  closed.second = Descriptor(-1);
  SocketMessage message;
  EXPECT_FALSE(send_message(closed.first.get(), "nobody", {}, 0).ok());  // and no signal
  Ends left = made();
  ASSERT_TRUE(send_message(left.first.get(), "last words", {}, 0).ok());
  { const Descriptor gone = std::move(left.first); }
  EXPECT_EQ(receive_message(left.second.get(), message, MessageWait::kNo), Received::kMessage);
  EXPECT_EQ(receive_message(left.second.get(), message, MessageWait::kNo), Received::kEnd);
  EXPECT_EQ(receive_message(-1, message, MessageWait::kNo), Received::kEnd);
}

TEST(Readable, TellsWhichCanBeReadAndWakesForACall) {
  const WakeEvent event = std::move(WakeEvent::create()).value();
  const Ends ends = made();
  const std::vector<int> both = {event.descriptor(), -1, ends.second.get()};
  EXPECT_EQ(wait_readable(both, 0), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(wait_readable(both, 1'000'000), (std::vector<bool>{false, false, false}));
  std::thread caller([&] { event.raise(); });
  EXPECT_EQ(wait_readable(both, -1), (std::vector<bool>{true, false, false}));
  caller.join();
  event.clear();
  ASSERT_TRUE(send_message(ends.first.get(), "x", {}, 0).ok());
  EXPECT_EQ(wait_readable(both, 20'000'000'000), (std::vector<bool>{false, false, true}));
}

}  // namespace
}  // namespace loralei
