// SPDX-License-Identifier: Apache-2.0
// What the tests of this room share: a folder of their own, files in it, and the
// folder of shared data.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

namespace loralei {

class WorkloadFiles : public testing::Test {
 protected:
  WorkloadFiles() {
    folder_ =
        std::filesystem::path(testing::TempDir()) / ("loralei-workload-" + std::to_string(::getpid()) + "-" +
                                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~WorkloadFiles() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The path of a file of shared data; "" where the folder is not there.
  static std::string shared(const std::string& name) {
    const char* folder = std::getenv("LORALEI_SHARED_DATA");
    const auto path = std::filesystem::path(folder != nullptr ? folder : LORALEI_SOURCE_DIR "/../shared/data") / name;
    return std::filesystem::exists(path) ? path.string() : "";
  }
  static bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

 private:
  std::filesystem::path folder_;
};

}  // namespace loralei
