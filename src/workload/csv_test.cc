// SPDX-License-Identifier: Apache-2.0
// Tables, words, and what damaged files of every kind are answered with.
#include "workload/csv.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "workload/generate.h"
#include "workload/spec.h"
#include "workload/workload_test_util.h"

namespace loralei {
namespace {

using CsvTest = WorkloadFiles;

TEST_F(CsvTest, ATableIsItsNamesAndRows) {
  const auto table = CsvTable::read(file("t.csv",
                                         "\xef\xbb\xbf"
                                         "a,b\r\n\r\n1,\r\n,x y\n"));
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->rows(), 2u);
  EXPECT_EQ(table->column("a"), 0u);
  EXPECT_FALSE(table->column("c"));
  EXPECT_EQ(table->cell(0, 0), "1");
  EXPECT_EQ(table->cell(0, 1), "");
  EXPECT_EQ(table->cell(1, 1), "x y");
  EXPECT_EQ(table->number(0, 0, 0, 5).value(), 1);
  EXPECT_EQ(table->number(0, 0, 2.5, 5).error().message,
            path("t.csv") + ":3: the column a holds '1', which is not a number from 2.5 to 5.");
  EXPECT_EQ(table->number(1, 1, 0, 5).error().message,
            path("t.csv") + ":4: the column b holds 'x y', which is not a number from 0 to 5.");
}

TEST_F(CsvTest, AWordIsItsKindItsNumbersAndAFile) {
  WorkloadSpec spec = parse_workload_spec("servegen:50:2e1:./a:3:b.csv", 3);
  EXPECT_EQ(spec.kind, "servegen");
  EXPECT_EQ(spec.numbers, (std::vector<double>{50, 20}));
  EXPECT_EQ(spec.file, "./a:3:b.csv");
  spec = parse_workload_spec("trace:7", 0);
  EXPECT_TRUE(spec.numbers.empty());
  EXPECT_EQ(spec.file, "7");
  spec = parse_workload_spec("none", 2);
  EXPECT_EQ(spec.kind, "none");
  EXPECT_EQ(spec.file, "");
  spec = parse_workload_spec("uniform:inf:1x", 2);
  EXPECT_TRUE(spec.numbers.empty());
  EXPECT_EQ(spec.file, "inf:1x");
}

// Each kind of file with bytes changed: a sentence, or a workload that can be written
// and read.
TEST_F(CsvTest, DamagedFilesAreAnsweredWithASentenceOrAWorkload) {
  const std::string good[] = {
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.99,396,109\n",
      "client,start_s,requests_per_s,cv,distribution,param1,param2\n0,0,2,1,Gamma,0.7,1\n0,600,3,1,Weibull,0.4,1\n",
      "client,start_s,input_mean,input_p10,input_p25,input_p50,input_p75,input_p90,input_p99,output_mean,output_p10,"
      "output_p25,output_p50,output_p75,output_p90,output_p99\n0,0,206.5,163,163,177,195,249,473,15.4,12,12,12,12,22,"
      "57\n",
      "rank,function,invocations_per_day\n0,f,600\n1,g,200\n",
      "dataset,question,step,agent,input_chars,output_chars,shared_prefix_any_agent_chars\nqa,0,0,plan,400,40,0\n"
      "qa,0,1,action,480,40,400\n",
  };
  static const std::string kBytes = "0123456789.,-:\n\r\"eE x\xff";
  int made_well = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    const size_t which = seed % std::size(good);
    std::string text = good[which];
    for (uint64_t changes = 1 + random.below(2); changes > 0; --changes) {
      const size_t rows = text.find('\n') + 1;  // behind the names of columns, which are most of the bytes
      const size_t at = random.below(4) == 0 || rows >= text.size() ? random.below(text.size())
                                                                    : rows + random.below(text.size() - rows);
      if (random.below(3) == 0) {
        text.erase(at, 1 + random.below(3));
      } else if (random.below(2) == 0) {
        text.insert(at, 1, kBytes[random.below(kBytes.size())]);
      } else {
        text[at] = kBytes[random.below(kBytes.size())];
      }
    }
    const std::string name = file("d.csv", text);
    WorkloadOptions options{.arrivals = "poisson:5", .lengths = "fixed:9:9", .seconds = 5, .count = 5, .seed = seed};
    if (which == 0) options.arrivals = "trace:" + name, options.lengths = "order:" + name;
    if (which == 1) options.arrivals = "servegen:" + name, options.adapters = "servegen";
    if (which == 2) options.lengths = "draw:" + name;
    if (which == 3) options.adapters = "functions:2:" + name;
    if (which == 4) options.prefixes = "agents:0.5:" + name, options.lengths = "";
    const auto requests = make_workload(options);
    if (!requests.ok()) {
      EXPECT_FALSE(requests.error().message.empty());
      continue;
    }
    ++made_well;
    std::string lines;
    for (const WorkloadRequest& one : *requests) lines += workload_line(one) + "\n";
    const auto read = read_workload(file("w.jsonl", lines));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, *requests);
  }
  EXPECT_GT(made_well, 200);
}

}  // namespace
}  // namespace loralei
