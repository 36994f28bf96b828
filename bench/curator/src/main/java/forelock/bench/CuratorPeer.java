package forelock.bench;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's {@link InterProcessMutex}, measured as {@code forelock-bench lock} measures: the same words on the command
 * line, the same meter, the same line of JSON.
 */
public final class CuratorPeer {
    private static final int SESSION_MS = 30_000;
    private static final int CONNECTION_MS = 15_000;
    /** The least time before it is measured. */
    private static final long WARM_UP_MS = 1_000;

    /** How many workers have had a turn. */
    private final AtomicInteger warm = new AtomicInteger();
    private final LongAdder done = new LongAdder();
    private final AtomicBoolean stop = new AtomicBoolean();

    private CuratorPeer() {}

    public static void main(String[] words) throws Exception {
        if (words.length != 8 || !words[0].equals("lock") || !words[1].equals("curator")) {
            System.err.println("usage: lock curator SERVERS BASE WORKERS SESSIONS own|one SECONDS");
            System.exit(2);
        }
        int workers = Integer.parseInt(words[4]);
        int sessions = Integer.parseInt(words[5]);
        long seconds = Long.parseLong(words[7]);
        new CuratorPeer().run(words[2], words[3], workers, sessions, words[6].equals("own"), seconds);
    }

    private void run(String servers, String base, int workers, int sessions, boolean own, long seconds)
            throws Exception {
        List<CuratorFramework> clients = new ArrayList<>();
        for (int session = 0; session < sessions; session++) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(
                    servers, SESSION_MS, CONNECTION_MS, new ExponentialBackoffRetry(100, 10));
            client.start();
            client.blockUntilConnected();
            clients.add(client);
        }
        List<Thread> threads = new ArrayList<>();
        for (int worker = 0; worker < workers; worker++) {
            String path = own ? base + "/" + worker : base + "/one";
            InterProcessMutex mutex = new InterProcessMutex(clients.get(worker % sessions), path);
            Thread thread = new Thread(() -> work(mutex));
            thread.start();
            threads.add(thread);
        }
        measure(workers, sessions, own, seconds);
        for (Thread thread : threads) {
            thread.join();
        }
        for (CuratorFramework client : clients) {
            client.close();
        }
    }

    private void work(InterProcessMutex mutex) {
        try {
            for (boolean first = true; !stop.get(); first = false) {
                mutex.acquire();
                mutex.release();
                done.increment();
                if (first) {
                    warm.incrementAndGet();
                }
            }
        } catch (Exception failure) {
            System.err.println(failure);
            // A rate without this worker would be another load's.
            Runtime.getRuntime().halt(1);
        }
    }

    private void measure(int workers, int sessions, boolean own, long seconds) throws InterruptedException {
        long warmAt = System.nanoTime() + WARM_UP_MS * 1_000_000;
        while (warm.get() < workers || System.nanoTime() < warmAt) {
            Thread.sleep(10);
        }
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long began = System.nanoTime();
        long cpuBefore = process.getProcessCpuTime();
        long doneBefore = done.sum();
        Thread.sleep(seconds * 1_000);
        long pairs = done.sum() - doneBefore;
        long took = System.nanoTime() - began;
        long cpu = process.getProcessCpuTime() - cpuBefore;
        stop.set(true);
        System.out.printf(
                Locale.ROOT,
                "{\"who\":\"curator\",\"workers\":%d,\"sessions\":%d,\"own\":%b,\"per_second\":%.3f,"
                        + "\"cpu_ms_each\":%.6f}%n",
                workers,
                sessions,
                own,
                pairs * 1e9 / took,
                cpu / 1e6 / Math.max(pairs, 1));
    }
}
